"""The layout of a schedule's picture: labels, and the height of each round.

`schedule` draws by it.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpccomm.schedules.draw.subject import Subject
from hpccomm.schedules.draw.text import contributed, members, routes, runs
from hpccomm.schedules.draw.trace import Data, DrawnStep, Move
from hpccomm.units import ranges

Color = tuple[float, float, float]

# Inches; the size of type is in points.
LINE = 0.17  # of a label's text
GLYPH = 0.062  # width of a character of that type
TYPE = 7.5
MARK = 0.075  # radius of a mark
MEETING = 0.16  # a barrier

MOST_LABELS = 3
"""The most labels of a rank in a round. With more parts it gets one label that counts them."""

MOST_RUNS = 2
"""The most slices that a label names. With more it counts the elements."""

MOST_WHOSE = 7
"""The most letters for the ranks whose contributions a message holds. With more it counts the ranks."""

MOST_ROUTES = 11
"""The most letters for senders or receivers of blocks. With more it counts the blocks."""

INK = (0.13, 0.13, 0.13)
PARTS = (0.35, 0.35, 0.35)

VIRIDIS = (
    (0.267, 0.005, 0.329),
    (0.275, 0.195, 0.496),
    (0.212, 0.360, 0.552),
    (0.152, 0.501, 0.558),
    (0.122, 0.633, 0.530),
    (0.296, 0.762, 0.424),
    (0.637, 0.857, 0.217),
)
"""Red, green and blue along the color scale, up to where it is too light on white."""


@dataclass(frozen=True, slots=True)
class Caption:
    """The text at the beginning of arrows.

    Attributes
    ----------
    text : str
        What moves; empty for a message without data.
    whose : str
        The ranks whose contributions were folded in it; for several blocks, the ranks that sent them.
    color : tuple of float
        Red, green, blue, from 0 to 1.
    """

    text: str
    whose: str
    color: Color

    @property
    def width(self) -> float:
        """Inches."""
        return GLYPH * max(len(self.text), 0.85 * len(self.whose)) + 0.11

    @property
    def height(self) -> float:
        """Inches."""
        return 1.75 * LINE if self.whose else LINE


@dataclass(frozen=True, slots=True, eq=False)
class RoundLayout:
    """A round.

    Attributes
    ----------
    step : DrawnStep
        What happens.
    labels : dict
        For each rank that sends, its labels, and of each the moves that begin there.
    stack : float
        Inches that the labels take.
    height : float
        Inches, of all.
    """

    step: DrawnStep
    labels: dict[int, list[tuple[Caption, list[Move]]]]
    stack: float
    height: float


def row(step: DrawnStep, subject: Subject) -> RoundLayout:
    """Lay out a round."""
    by_rank: dict[int, dict[Caption, list[Move]]] = defaultdict(lambda: defaultdict(list))
    for move in step.moves:
        by_rank[move.source][label(move.data, subject)].append(move)
    labels = {}
    for rank, own in by_rank.items():
        parts = list(own.items())
        if len(parts) > MOST_LABELS:
            moves = [move for _, each in parts for move in each]
            parts = [(Caption(f"{len(parts)} parts", "", PARTS), moves)]
        labels[rank] = parts
    stacks = (sum(each.height for each, _ in parts) for parts in labels.values())
    stack = max(stacks, default=0.0)
    height = 0.11
    if step.moves:
        height += stack + _fall(step.moves) + 2 * MARK
    elif step.marks:
        height += 2 * MARK
    if step.meeting:
        height += MEETING
    return RoundLayout(step, labels, stack, height)


def label(data: Data, subject: Subject) -> Caption:
    """Return the label of a message, in few letters."""
    if not len(data.elements):
        return Caption("", "", INK)
    if subject.call.description.individual:
        return _blocks(routes(data, subject), subject.size)
    slices = runs(data.elements)
    text = " ".join(str(a) if b == a + 1 else f"{a}:{b}" for a, b in slices)
    if len(slices) > MOST_RUNS:
        text = f"{len(data.elements)} in {len(slices)}"
    whose = contributed(data)
    if whose == ranges(range(subject.size)):
        whose = "all"
    elif len(whose) > MOST_WHOSE:
        whose = f"{len(members(data.contributions[0]))} ranks"
    place = float(np.mean(data.elements)) / max(subject.call.elements - 1, 1)
    return Caption(text, f"Σ {whose}" if whose else "", shade(place))


def _blocks(blocks: Sequence[tuple[int, int]], size: int) -> Caption:
    """Return the label of exchanged blocks: their source and target ranks."""
    color = shade(blocks[0][0] / max(size - 1, 1))
    if len(blocks) == 1:
        return Caption("→".join(map(str, blocks[0])), "", color)
    senders, receivers = ({block[end] for block in blocks} for end in (0, 1))
    text, whose = f"→{ranges(receivers)}", f"of {ranges(senders)}"
    if max(len(text), len(whose)) > MOST_ROUTES:
        return Caption(f"{len(blocks)} blocks", "", color)
    return Caption(text, whose, color)


def shade(place: float) -> Color:
    """Return the color of a value in 0 to 1, from a scale for color-blind readers too."""
    at = np.linspace(0, 1, len(VIRIDIS))
    red, green, blue = (float(np.interp(place, at, part)) for part in zip(*VIRIDIS, strict=True))
    return red, green, blue


def pitch(rows: Sequence[RoundLayout]) -> float:
    """Return the inches between ranks, which depend on the widest label."""
    widths = [each.width for row in rows for parts in row.labels.values() for each, _ in parts]
    return min(max(max(widths, default=0.0) + 0.14, 0.42), 1.4)


def _fall(moves: Sequence[Move]) -> float:
    """Return the inches from labels to marks: more where arrows are long or many."""
    distance = float(np.mean([abs(move.target - move.source) for move in moves]))
    crowd = max(Counter(move.target for move in moves).values())
    return 0.2 + 0.06 * min(distance, 8) + 0.08 * min(crowd - 1, 12)
