"""SIGUSR1 writes the last calls down, whatever the main thread is stuck in.

Python runs signal handlers in the main thread, between two instructions: never, while that is blocked in a
library. faulthandler's handler runs at once and needs no lock. It writes to a pipe, which wakes a thread.
"""

import faulthandler
import logging
import os
import select
import signal

from hpccomm.runtime.dump import dump
from hpccomm.runtime.lifetime import after_fork, start_thread

logger = logging.getLogger("hpccomm")

QUIET_SECONDS = 0.05
"""Nothing more comes of a signal after so long."""

_installed = False


def install() -> None:
    """Take SIGUSR1, unless the program has a use for it. Idempotent."""
    global _installed
    if _installed or signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL:
        return
    reading, writing = os.pipe()
    if start_thread("hpccomm-dump", _serve, reading):
        faulthandler.register(signal.SIGUSR1, file=writing, all_threads=False)
        _installed = True


def _serve(reading: int) -> None:
    pipe = select.poll()  # select takes no file whose number is above 1023
    pipe.register(reading, select.POLLIN)
    while os.read(reading, 1 << 16):
        # The handler writes a stack in pieces: all of them are one signal.
        while pipe.poll(1000 * QUIET_SECONDS) and os.read(reading, 1 << 16):
            pass
        try:
            dump(reason="SIGUSR1")
        except Exception as error:  # noqa: BLE001 (the next signal must still be heard)
            logger.warning("the last calls could not be written: %r", error)


@after_fork
def _after_fork() -> None:
    global _installed  # the thread is the parent's, and so is what the pipe wakes
    if _installed:
        _installed = False
        faulthandler.unregister(signal.SIGUSR1)
