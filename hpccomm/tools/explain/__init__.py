"""Finds what went wrong in a job, from its log or from the flight dumps of its ranks.

- `dumps` reads the dumps of a folder. `history` joins them by communicator and collective number.
- `faults` asks `hpccomm.runtime.verdict` about a call, and finds the cause; `words` says it, and draws it in text.
- `meanings` explains messages, and `log` finds them in a log.

`hpccomm.tools.explain.command` calls this package.
"""
