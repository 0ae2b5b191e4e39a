"""NCCL_ALGO, as a communicator reads it while it is created, and what a call's own settings name."""

_FUNCTIONS = {"all_reduce": {"tree", "ring"}}
_FUNCTIONS |= {name: {"ring"} for name in ("reduce", "broadcast", "reduce_scatter", "all_gather")}
"""What the stand-in has of NCCL's algorithms, by collective."""


class Allowed:
    """What a value of NCCL_ALGO leaves."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._left: dict[str, set[str]] = {}
        for section in filter(None, text.split(";")):
            function, _, words = section.rpartition(":")
            named = {word.strip().lower() for word in words.lstrip("^").split(",")}
            for name, there in _FUNCTIONS.items():
                if function.strip().lower() in ("", name.replace("_", "")):
                    self._left[name] = there - named if words.startswith("^") else there & named

    def permits(self, collective: str) -> bool:
        """Tell whether something is left for a collective."""
        return bool(self._left.get(collective, True))
