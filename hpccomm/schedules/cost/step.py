"""Steps: messages of which each waits for the one before, and what is folded or copied after each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hpccomm.schedules.cost.path import Path, Stage
from hpccomm.schedules.cost.pieces import Pieces


@dataclass(frozen=True, slots=True)
class Step:
    """One message on a path, and what follows when it is there.

    Attributes
    ----------
    hop : Path
        From its start to its arrival.
    port : Path
        For how long it takes its sender's port.
    local : Path
        What its receiver folds or copies.
    """

    hop: Path
    port: Path
    local: Path = Path()  # noqa: RUF009 - it is frozen

    @property
    def stay(self) -> "Step":
        """The step of a path that stays with the sender, who waits for no arrival."""
        return replace(self, hop=self.port)

    def __rmul__(self, times: float) -> "Step":
        return Step(times * self.hop, times * self.port, times * self.local)


Steps = Sequence[Step]


def local_step(local: Path) -> Step:
    """Return the step of a rank that waits for no message."""
    return Step(Path(), Path(), local)


def chained(steps: Steps) -> Path:
    """Return the path through all of `steps`."""
    return sum((step.hop + step.local for step in steps), Path())


def in_turn(pieces: Pieces, ways: Callable[[float], Sequence[Steps]]) -> list[Stage]:
    """Return the stages of pieces that go through the same steps, on channels.

    Parameters
    ----------
    pieces : Pieces
        What goes through them, one piece of a channel after the other.
    ways : callable
        ``ways(elements)`` gives the steps of a piece, and others of which some may take longer.
    """
    own = ways(pieces.piece)
    if pieces.channels == 1:
        return [tuple(pieces.pieces * chained(steps) for steps in own)]
    # Channels are in the same step at about the same time: in each, what they share counts if it
    # takes longer than one of them does.
    return [
        (
            pieces.pieces * (step.hop + step.local),
            pieces.all_pieces * shared.port,
            pieces.all_pieces * shared.local,
        )
        for step, shared in zip(own[0], ways(pieces.mean)[0], strict=True)
    ]
