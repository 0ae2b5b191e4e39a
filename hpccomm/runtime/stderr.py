"""Last words: to standard error, whatever state the process is in."""

import contextlib
import os
import sys
from collections.abc import Callable

STDERR = 2
"""The process's own standard error, whatever ``sys.stderr`` is."""


class Voice:
    """How ranks that have the same to say take turns: none knows of others, unless they can be asked.

    Attributes
    ----------
    before : callable
        ``before(what)`` returns how many ranks have said something before this one says it. It may ask
        them, which takes up to half a second.
    """

    before: Callable[[str], int] = staticmethod(lambda _: 0)


def write_stderr(text: str) -> None:
    """Write a line to standard error. Never raises.

    It may be closed, its reader gone, or a signal have come while a stream was being flushed.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
            stream.flush()
    with contextlib.suppress(OSError):
        os.write(STDERR, f"{text}\n".encode(errors="backslashreplace"))
