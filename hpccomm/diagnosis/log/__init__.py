"""What went wrong in a job, from its log: of any size, with what launchers put before each line.

`scan` finds lines with known words, `prefixes` says whose they are, `tracebacks` reads those of Python,
`reading` goes through the log, `report` puts causes before consequences, and `words` says it.
"""
