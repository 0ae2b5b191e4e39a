"""Verdicts on figures that have a limit: one line each, in a form that other programs can search for."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class Verdicts:
    """Prints verdicts and remembers whether one failed.

    Parameters
    ----------
    shown : bool
        Whether this rank prints.
    excuse : str
        Why limits on times do not hold here; empty where they do.
    """

    def __init__(self, *, shown: bool, excuse: str = "") -> None:
        self._shown = shown
        self.excuse = excuse
        self.failed = False

    def limit(self, ok: bool, text: str) -> None:
        """Say whether a limit is kept."""
        self.failed |= not ok
        self.say(f"{'PASS' if ok else 'FAIL'}  {text}")

    def time_limit(self, ok: bool, text: str) -> None:
        """Say whether a limit on times is kept, or only what was measured where there is an excuse for it."""
        if self.excuse:
            self.note(f"{text} ({self.excuse})")
        else:
            self.limit(ok, text)

    def note(self, text: str) -> None:
        """Say what was measured where no limit holds."""
        self.say(f"INFO  {text}")

    def say(self, text: str) -> None:
        """Print something else."""
        if self._shown:
            print(text, flush=True)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Have an error of the block fail that part alone: what follows it is still checked."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (whatever it is, the next part may be right)
            traceback.print_exc()
            self.limit(False, f"{name}: {type(error).__name__}: {error}".partition("\n")[0])
