"""Last words: to standard error, whatever state the process is in."""

import contextlib
import os
import sys

STDERR = 2
"""The process's own standard error, whatever ``sys.stderr`` is."""


def write_stderr(text: str) -> None:
    """Write a line to standard error. Never raises.

    It may be closed, its reader gone, or a signal have come while a stream was being flushed.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
            stream.flush()
    with contextlib.suppress(OSError):
        os.write(STDERR, f"{text}\n".encode(errors="backslashreplace"))
