"""Commands on a terminal of their own, a real one as far as they can tell."""

import contextlib
import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

LONGEST = 60.0
"""Seconds that anything on it may take."""


class Terminal:
    """A command on a terminal: what it shows, and keys that are pressed.

    Attributes
    ----------
    process : Popen
        The command.
    shown : str
        What it has shown so far.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self.process = process
        self.shown = ""
        self._master = master
        self._until = time.monotonic() + LONGEST

    def press(self, keys: bytes) -> None:
        """Press keys: ``b"\\x03"`` is Ctrl-C."""
        os.write(self._master, keys)

    def wait_for(self, text: str) -> None:
        """Wait until it shows a text."""
        while text not in self.shown:
            assert self._read(), f"{text!r} is not in {self.shown!r}"

    def wait(self) -> int:
        """Wait for its end; return the exit status."""
        while self._read():
            pass
        return self.process.wait(max(1.0, self._until - time.monotonic()))

    def _read(self) -> bool:
        left = self._until - time.monotonic()
        assert left > 0, f"it takes too long: {self.shown!r}"
        if not select.select([self._master], [], [], left)[0]:
            return True
        try:
            more = os.read(self._master, 1 << 16)
        except OSError:  # nobody has it open any more
            return False
        self.shown += more.decode(errors="replace")
        return bool(more)


@contextlib.contextmanager
def on_terminal(
    command: Sequence[str], environment: Mapping[str, str], redirected: str = ""
) -> Iterator[Terminal]:
    """Start a command on a new terminal, which is its controlling one.

    Parameters
    ----------
    command : sequence of str
    environment : mapping
        Its variables.
    redirected : str
        Redirections of the shell, such as ``>file``.
    """
    master, slave = pty.openpty()
    name = os.ttyname(slave)
    # The first terminal that the leader of a session opens is its controlling one.
    shell = f'exec "$@" <{name} >{name} 2>&1 {redirected}'
    process = subprocess.Popen(
        ["sh", "-c", f"exec <{name}; {shell}", "sh", *command],
        stdin=slave,  # open until the command has it, else reading would end at once
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=dict(environment),
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)
