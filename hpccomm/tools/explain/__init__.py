"""``hpccomm explain``: what went wrong in a job, from its log or from the flight dumps of its ranks.

- `explain` is the verb. It prints the faults of a job, and draws its last collectives.
- `dumps` reads the dumps of a folder. `job` joins them by communicator and collective number. `faults` asks
  `hpccomm.runtime.verdict` about a call, and says the cause in sentences.
- `log` reads a log, and `log_report` collects the messages in it, causes before consequences.
- `meanings` explains messages, with the tables beside it.
"""
