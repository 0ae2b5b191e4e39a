"""Verdicts on figures that have a limit: one line each, in a form that other programs can search for."""

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

    def note(self, text: str) -> None:
        """Say what was measured where no limit holds."""
        self._say(INFO, text)

    def _say(self, verdict: str, text: str) -> None:
        if self._shown:
            print(f"{verdict}  {text}", flush=True)
