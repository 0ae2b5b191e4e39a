"""NCCL_ALGO, as a communicator reads it while it is created."""

from standin import control

_KNOWN = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
_FUNCTIONS = {
    "all_reduce": ("tree", "ring"),
    "reduce": ("ring",),
    "broadcast": ("ring",),
    "reduce_scatter": ("ring",),
    "all_gather": ("ring",),
}
"""What the stand-in has of NCCL's algorithms, by collective."""


def _set(words: str) -> frozenset[str] | None:
    without = words.startswith("^")
    named = frozenset(word.strip().lower() for word in words.lstrip("^").split(",") if word.strip())
    if not named <= frozenset(_KNOWN):
        return None
    return frozenset(_KNOWN) - named if without else named


class Allowed:
    """What a value of NCCL_ALGO leaves."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.valid = True
        self._by_function: dict[str, frozenset[str]] = {}
        for section in filter(None, text.split(";")):
            function, colon, words = section.rpartition(":")
            allowed = _set(words)
            if allowed is None:
                self.valid = False
                return
            wanted = function.strip().lower() if colon else ""
            for name in _FUNCTIONS:
                if not wanted or name.replace("_", "") == wanted:
                    self._by_function[name] = allowed

    def permits(self, collective: str) -> bool:
        """Tell whether something is left for a collective."""
        there = _FUNCTIONS.get(collective)
        allowed = self._by_function.get(collective)
        return there is None or allowed is None or not allowed.isdisjoint(there)


def from_environment() -> Allowed:
    """Read it."""
    return Allowed(control.nccl_env("NCCL_ALGO"))
