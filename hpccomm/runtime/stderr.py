"""Last words: to standard error, whatever state the process is in."""

import contextlib
import gc
import logging
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
        with contextlib.suppress(Exception):  # it may be an object of the program's
            stream.flush()
    with contextlib.suppress(OSError):
        os.write(STDERR, f"{text}\n".encode(errors="backslashreplace"))


def uncapture() -> None:
    """Let go what pytest has captured of this process, which ends: it would be lost, with all that is said last."""
    module = sys.modules.get("_pytest.capture")
    for each in gc.get_objects() if module is not None else ():
        if type(each) is module.CaptureManager:  # type: ignore[union-attr]  # it is there
            with contextlib.suppress(Exception):  # it may be another version's
                each.suspend(in_=False)
                captured = [each.read_global_capture()]
                if each._capture_fixture is not None:  # noqa: SLF001 (there is no other way)
                    captured.append(each._capture_fixture.readouterr())  # noqa: SLF001
                for texts in captured:
                    for descriptor, text in enumerate(texts, 1):
                        os.write(descriptor, text.encode(errors="backslashreplace"))


def guard_logging() -> None:
    """Have what a logging handler of the program's raises end nothing: neither a call nor a thread. Idempotent.

    A thread that watches calls, or the end of the job, may be what logs. The record is printed instead.
    """
    logger = logging.getLogger("hpccomm")
    if "callHandlers" in vars(logger):
        return
    handle = logger.callHandlers

    def guarded(record: logging.LogRecord) -> None:
        try:
            handle(record)
        except Exception as error:  # noqa: BLE001 (whatever it raises)
            write_stderr(
                f"hpccomm: {record.getMessage()}\nhpccomm: a logging handler failed on it: {error!r}"
            )

    logger.callHandlers = guarded  # type: ignore[method-assign]
