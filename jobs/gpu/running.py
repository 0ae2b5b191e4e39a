"""Commands with a time limit."""

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

STOPPED = 124
"""Exit status of a command that took too long, as timeout has it."""
GRACE = 10.0
"""Seconds that a command has to end by itself when it is asked to."""
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
BEGAN = time.monotonic()
CHECKOUT = Path(__file__).parents[2]


class GivesUp(Exception):
    """It cannot be done; the text says what to do."""


def say(text: str) -> None:
    """Print a line."""
    print(text, flush=True)


def elapsed() -> float:
    """Return the seconds since the script began."""
    return time.monotonic() - BEGAN


def ends_with_the_script() -> None:
    """Have the kernel end this process when the script is killed: it would keep the GPU from the next run."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def limited(
    words: Sequence[str],
    seconds: float,
    environment: Mapping[str, str],
    output: IO[bytes] | None = None,
) -> int:
    """Run a command at most so long, its output to a file; return the exit status, or `STOPPED`."""
    process = subprocess.Popen(
        list(words), stdin=subprocess.DEVNULL, stdout=output, stderr=output and subprocess.STDOUT,
        env=dict(environment), cwd=CHECKOUT, start_new_session=True,
        preexec_fn=ends_with_the_script,
    )  # fmt: skip
    try:
        return process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return STOPPED
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):  # of what it has left, too
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
                break


def captured(words: Sequence[str], seconds: float, environment: Mapping[str, str]) -> str:
    """Return what a command prints within its time, errors too; '' if there is no such command."""
    with tempfile.TemporaryFile() as file, contextlib.suppress(OSError):
        limited(words, seconds, environment, file)
        file.seek(0)
        return file.read().decode(errors="replace").replace("\0", "").strip()
    return ""
