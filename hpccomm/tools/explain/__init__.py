"""``hpccomm explain``: what went wrong in a job, from its log or from the flight dumps of its ranks.

- `explain` is the verb. It says the faults of a job in sentences, and draws its last collectives.
- `dumps` reads the dumps of a folder. `faults` joins them by communicator and collective number, asks
  `hpccomm.runtime.verdict` about a call, and finds the cause.
- `log` reads a log, and `log_report` collects the messages in it, causes before consequences.
- `meanings` explains messages, with the tables beside it.
"""
