"""Verdicts on figures that have a limit: one line each, in a form that other programs can search for."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

PASS, FAIL, INFO = "PASS", "FAIL", "INFO"


class Verdicts:
    """Prints verdicts and remembers whether one failed.

    Parameters
    ----------
    shown : bool
        Whether this rank prints.
    """

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self.failed = False

    def limit(self, ok: bool, text: str) -> None:
        """Say whether a limit is kept."""
        self.failed |= not ok
        self._say(PASS if ok else FAIL, text)

    def limit_unless(self, excused: str, ok: bool, text: str) -> None:
        """Say whether a limit is kept, or only what was measured where there is an excuse for it."""
        if excused:
            self.note(f"{text} ({excused})")
        else:
            self.limit(ok, text)

    def note(self, text: str) -> None:
        """Say what was measured where no limit holds."""
        self._say(INFO, text)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Have an error of the block fail that part alone: what follows it is still checked."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (whatever it is, the next part may be right)
            traceback.print_exc()
            self.limit(False, f"{name}: {type(error).__name__}: {error}".partition("\n")[0])

    def _say(self, verdict: str, text: str) -> None:
        if self._shown:
            print(f"{verdict}  {text}", flush=True)
