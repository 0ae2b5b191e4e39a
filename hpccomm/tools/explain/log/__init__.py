"""Finds what went wrong in a job from its log, of any size, with any launcher's prefixes.

- `reading` goes through the log, and finds lines with known words and Python's tracebacks.
- `report` finds the rank and host of a line, and whether a program went on after a failure. It puts causes before
  consequences, and `words` says them.

`hpccomm.tools.explain.command` calls it.
"""
