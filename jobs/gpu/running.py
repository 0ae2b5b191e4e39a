"""Commands with a time limit, whose output goes to the terminal and to the log."""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

VERDICT = re.compile(r"(?:PASS|FAIL|INFO)  ")
STOPPED = 124
"""Exit status of a command that took too long, as timeout has it."""
GRACE = 10.0
"""Seconds that a command has to end by itself when it is asked to."""
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class GivesUp(Exception):
    """It cannot be done; the text says what to do."""


class Output:
    """The terminal, and the log once there is one."""

    def __init__(self) -> None:
        self.log: TextIO | None = None

    def say(self, text: str) -> None:
        """Print a line."""
        line = text.replace("\0", "")  # Open MPI's launcher prints some
        print(line, flush=True)
        if self.log is not None:
            print(line, file=self.log, flush=True)


OUT = Output()
say = OUT.say


def ends_with_the_script() -> None:
    """Have the kernel end this process when the script is killed: it would keep the GPU from the next run."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def limited(
    words: Sequence[str],
    seconds: float,
    environment: Mapping[str, str],
    cwd: Path,
    heard: Callable[[str], None] | None = None,
) -> int:
    """Run a command at most so long; return its exit status, `STOPPED` if it took longer.

    Each line that it prints is printed, and given to `heard`.
    """
    process = subprocess.Popen(
        list(words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(environment),
        cwd=cwd,
        start_new_session=True,
        preexec_fn=ends_with_the_script,
    )

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            say(line.rstrip("\n"))
            if heard is not None:
                heard(line.strip("\n\0 "))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    try:
        status = process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        status = STOPPED
    finally:
        end(process)
        # What was printed is whole then; a rank that lives on must not hold it up.
        reading.join(10)
    return status


def end(process: subprocess.Popen[str]) -> None:
    """End a command and its children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
            return


def interrupted(number: int, _frame: object) -> None:
    """Leave by an exception, which ends the command that runs and writes what there is."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def listen() -> None:
    """Have the signals that end a job leave in that way."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, interrupted)


def captured(
    words: Sequence[str],
    seconds: float,
    environment: Mapping[str, str],
    stderr: int = subprocess.DEVNULL,
) -> str:
    """Return what a command prints on standard output within its time; what it has printed until then."""
    try:
        done = subprocess.run(
            list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
            text=True, errors="replace", timeout=seconds, env=dict(environment), check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(errors="replace")
    except OSError:
        return ""
    return done.stdout


def date() -> str:
    """Return the date and the time as text."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def elapsed() -> float:
    """Return the seconds since the script began."""
    return time.monotonic() - BEGAN


BEGAN = time.monotonic()


def give_up(error: GivesUp) -> None:
    """Print why, and leave."""
    print(f"gpu_acceptance.sh: error: {error}", file=sys.stderr)
    raise SystemExit(2)
