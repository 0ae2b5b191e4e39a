"""A schedule as a picture: a column for each rank, rounds downwards, an arrow for each message.

`hpccomm plot --schedule` draws it, and prints it as lines of text with ``--text``.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpccomm.contracts.collectives import ring
from hpccomm.schedules.schedule import Column
from hpccomm.tools.drawing import Canvas, Place
from hpccomm.tools.runs.trace import Data, DrawnStep, Move, Subject
from hpccomm.units import grouped, ranges

SIGNS = {"copy": "copies", "fold": "folds", "final": "completes"}


def lines(subject: Subject) -> Iterator[str]:
    """Yield a line for each round: ``round 3: 0→1 [4:8] of 0-2; folds: 1``.

    A message is shown as sender→receiver, the slice of the array that it moves, and the ranks whose
    contributions are folded in it. ``0⇢1`` is not a message: one of the two ranks accesses the other's
    memory. Copies, folds, and folds that complete a result name the ranks that do them.
    """
    yield subject.title
    yield subject.summary
    several = len(subject.channels) > 1
    for channel, steps in enumerate(subject.channels):
        for step in steps:
            where = f"channel {channel} round {step.number}" if several else f"round {step.number}"
            yield f"{where}: {'; '.join(_said(step, subject))}"


def _said(step: DrawnStep, subject: Subject) -> Iterator[str]:
    moves = []
    for move in step.moves:
        arrow = "→" if move.how == "message" else "⇢"
        what = slices(move.data, subject)
        origin = contributed(move.data)
        moves.append(
            f"{move.source}{arrow}{move.target}"
            + (f" {what}" if what else "")
            + (f" of {origin}" if origin else "")
        )
    if moves:
        yield ", ".join(moves)
    for kind, verb in SIGNS.items():
        ranks = [rank for rank, kinds in step.marks.items() if kind in kinds]
        if ranks:
            yield f"{verb}: {ranges(ranks)}"
    for group in step.meeting:
        yield f"barrier: {ranges(group)}"


def slices(data: Data, subject: Subject) -> str:
    """Return the slices of the array, such as ``[4:8]``; or sender and receiver of blocks."""
    if subject.call.description.individual:
        return " ".join(f"[{source}→{target}]" for source, target in routes(data, subject))
    return " ".join(f"[{first}:{last}]" for first, last in runs(data.elements))


def routes(data: Data, subject: Subject) -> list[tuple[int, int]]:
    """Return sender and receiver of each block that ranks exchange, in the order of the data."""
    call, size = subject.call, subject.size
    total = call.elements
    block = total // len(call.counts)
    blocks = dict.fromkeys(
        (element // total, element % total // block) for element in data.elements.tolist()
    )
    if call.description.peers:
        return [(sender, ring(sender, size)[number]) for sender, number in blocks]
    return list(blocks)


def contributed(data: Data) -> str:
    """Return the ranks whose contributions are folded in each element.

    The text is empty if it is only one rank, or if the elements differ.
    """
    if not len(data.contributions) or (data.contributions != data.contributions[0]).any():
        return ""
    ranks = members(data.contributions[0])
    return ranges(ranks) if len(ranks) > 1 else ""


def members(contributions: np.uint64) -> list[int]:
    """Return the ranks whose bit is set."""
    bits = int(contributions)
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


def runs(elements: Column) -> list[tuple[int, int]]:
    """Cut elements into runs of neighbors: first and one past the last of each."""
    if not len(elements):
        return []
    cuts = np.flatnonzero(np.diff(elements) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(elements, cuts)]


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

MOST_ORIGIN = 7
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
        The elements or blocks that move; empty for a message without data.
    origin : str
        The ranks whose contributions were folded in it; for several blocks, the ranks that sent them.
    color : tuple of float
        Red, green, blue, from 0 to 1.
    """

    text: str
    origin: str
    color: Color

    @property
    def width(self) -> float:
        """Inches."""
        return GLYPH * max(len(self.text), 0.85 * len(self.origin)) + 0.11

    @property
    def height(self) -> float:
        """Inches."""
        return 1.75 * LINE if self.origin else LINE


@dataclass(frozen=True, slots=True, eq=False)
class RoundLayout:
    """A round.

    Attributes
    ----------
    step : DrawnStep
        The moves and local steps.
    labels : dict
        For each rank that sends, the moves that begin at each of its labels.
    stack : float
        Height of the highest stack of labels, in inches.
    height : float
        Height of the round, in inches.
    """

    step: DrawnStep
    labels: dict[int, dict[Caption, list[Move]]]
    stack: float
    height: float


def row(step: DrawnStep, subject: Subject) -> RoundLayout:
    """Lay out a round."""
    labels = {}
    for rank, moves in grouped((move.source, move) for move in step.moves).items():
        parts = grouped((label(move.data, subject), move) for move in moves)
        if len(parts) > MOST_LABELS:
            parts = {Caption(f"{len(parts)} parts", "", PARTS): moves}
        labels[rank] = parts
    stack = max((sum(each.height for each in parts) for parts in labels.values()), default=0.0)
    height = 0.11
    if step.moves:
        height += stack + _fall(step.moves)
    if step.moves or step.marks:
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
    origin = contributed(data)
    if origin == ranges(range(subject.size)):
        origin = "all"
    elif len(origin) > MOST_ORIGIN:
        origin = f"{len(members(data.contributions[0]))} ranks"
    place = float(np.mean(data.elements)) / max(subject.call.elements - 1, 1)
    return Caption(text, f"Σ {origin}" if origin else "", shade(place))


def _blocks(blocks: Sequence[tuple[int, int]], size: int) -> Caption:
    """Return the label of exchanged blocks: their source and target ranks."""
    color = shade(blocks[0][0] / max(size - 1, 1))
    if len(blocks) == 1:
        return Caption("→".join(map(str, blocks[0])), "", color)
    senders, receivers = ({block[end] for block in blocks} for end in (0, 1))
    text, origin = f"→{ranges(receivers)}", f"of {ranges(senders)}"
    if max(len(text), len(origin)) > MOST_ROUTES:
        return Caption(f"{len(blocks)} blocks", "", color)
    return Caption(text, origin, color)


def shade(place: float) -> Color:
    """Return the color of a value in 0 to 1, from a scale that color-blind readers can tell apart."""
    at = np.linspace(0, 1, len(VIRIDIS))
    red, green, blue = (float(np.interp(place, at, part)) for part in zip(*VIRIDIS, strict=True))
    return red, green, blue


def pitch(rows: Sequence[RoundLayout]) -> float:
    """Return the inches between ranks, which depend on the widest label."""
    widths = [each.width for row in rows for parts in row.labels.values() for each in parts]
    return min(max(max(widths, default=0.0) + 0.14, 0.42), 1.4)


def _fall(moves: Sequence[Move]) -> float:
    """Return the inches from labels to marks: more where arrows are long or many."""
    distance = float(np.mean([abs(move.target - move.source) for move in moves]))
    crowd = max(Counter(move.target for move in moves).values())
    return 0.2 + 0.06 * min(distance, 8) + 0.08 * min(crowd - 1, 12)


# Inches.
MARGIN = 0.15
GUTTER = 0.4  # left of the ranks: numbers of rounds
BETWEEN = 0.4  # channels
HEAD = 0.55  # above the ranks: what it is
ABOVE = 0.2  # further, where channels or nodes are named
RANKS = 0.42  # the ranks' numbers
FOOT = 0.35  # the legend
LEGEND = 5.3  # width of all signs and their meanings

PALE = "#767676"
FAINT = "#e0e0e0"
NODE = "#eef2f6"

PEER_MEMORY = "3 2"  # dashes
MEANINGS = {
    "fold": "folds",
    "final": "folds: complete",
    "copy": "copies",
    "peer": "a peer's memory",
    "barrier": "barrier",
}
"""The meanings of the signs, from left to right."""


def draw(subject: Subject) -> str:
    """Draw a schedule.

    Each channel is a panel. The label at the beginning of an arrow says which elements move, and whose
    contributions they hold. Colors go from the first element to the last. Arrows have ids,
    ``message-C-R-S-T-I``: channel, round, sender, receiver, and a number among equal ones. The ids begin
    with ``read-`` or ``write-`` where a rank accesses its peer's memory.

    Returns
    -------
    str
        A document of SVG.
    """
    panels = [[row(step, subject) for step in steps] for steps in subject.channels]
    distance = pitch([each for rows in panels for each in rows])
    panel = GUTTER + distance * subject.size
    words = max(0.112 * len(subject.title), 0.076 * len(subject.summary))
    width = 2 * MARGIN + max(len(panels) * (panel + BETWEEN) - BETWEEN, words, LEGEND)
    tall = max((sum(each.height for each in rows) for rows in panels), default=0.0)
    head = HEAD + ABOVE * (len(panels) > 1 or subject.topology.num_nodes > 1)
    height = 2 * MARGIN + head + tall + 2 * RANKS + FOOT
    canvas = Canvas(width, height)
    canvas.text((MARGIN, MARGIN + 0.12), subject.title, 12, INK, bold=True)
    canvas.text((MARGIN, MARGIN + 0.38), subject.summary, 9, INK)
    for number, rows in enumerate(panels):
        left = MARGIN + number * (panel + BETWEEN)
        at = [left + GUTTER + distance * (rank + 0.5) for rank in range(subject.size)]
        _Panel(canvas, subject, number, left, at, MARGIN + head, tall).draw(rows)
    _legend(canvas, subject, height - MARGIN - FOOT / 2)
    return canvas.svg()


@dataclass(frozen=True, slots=True, eq=False)
class _Panel:
    """Draws one channel.

    Attributes
    ----------
    left, top : float
        Its upper left corner, in inches.
    at : sequence of float
        Inches from the left to each rank.
    tall : float
        Height of all rounds, in inches.
    """

    canvas: Canvas
    subject: Subject
    channel: int
    left: float
    at: Sequence[float]
    top: float
    tall: float

    def draw(self, rows: Sequence[RoundLayout]) -> None:
        """Draw the ranks and all rounds."""
        first, last = self.top + RANKS, self.top + RANKS + self.tall
        if self.subject.topology.num_nodes > 1:
            self._nodes()
        if len(self.subject.channels) > 1:
            name = f"channel {self.channel}"
            self.canvas.text((self.left, self.top - 0.06), name, 9, INK)
        for rank, x in enumerate(self.at):
            self.canvas.line([(x, first - 0.12), (x, last + 0.12)], FAINT, 1.2, level=1)
            for y in (first - RANKS / 2, last + RANKS / 2):
                self.canvas.circle((x, y), 0.11, INK)
                self.canvas.text((x, y), str(rank), 8.5, "white", centred=True)
        y = first
        last_number = -1
        for each in rows:
            number = each.step.number
            if number != last_number:
                self._rule(y)
                middle = y + each.height / 2
                self.canvas.text((self.left + 0.14, middle), str(number), 8, PALE, centred=True)
            last_number = number
            self._step(each, y)
            y += each.height
        self._rule(y)

    def _nodes(self) -> None:
        """Name the nodes, and shade every other one."""
        topology = self.subject.topology
        half = (self.at[1] - self.at[0]) / 2
        bottom = self.top + 2 * RANKS + self.tall
        for node in range(topology.num_nodes):
            ranks = topology.ranks_of(node)
            left, right = self.at[ranks[0]] - half, self.at[ranks[-1]] + half
            if node % 2 == 0:
                size = right - left, bottom - self.top
                self.canvas.box((left, self.top), size, NODE, level=0)
            middle = (left + right) / 2
            self.canvas.text((middle, self.top - 0.06), f"node {node}", 8, INK, centred=True)

    def _step(self, each: RoundLayout, y: float) -> None:
        bottom = y + each.height
        if each.step.meeting:
            bottom -= MEETING
            for group in each.step.meeting:
                ends = self.at[min(group)] - 0.12, self.at[max(group)] + 0.12
                self.canvas.line([(x, bottom + MEETING / 2) for x in ends], INK, 3)
        marks = bottom - 0.03 - MARK
        for rank, signs in each.step.marks.items():
            for place, what in enumerate(signs):
                _sign(self.canvas, what, self.at[rank] + 2.4 * MARK * place, marks)
        arriving = grouped((move.target, move) for move in each.step.moves)
        same: Counter[str] = Counter()
        for move, start in self._labels(each, y + 0.06):
            crowd = arriving[move.target]
            spread = min(0.09, 0.3 / max(len(crowd) - 1, 1))
            aside = (crowd.index(move) - (len(crowd) - 1) / 2) * spread
            end = marks - (MARK if move.target in each.step.marks else -MARK)
            which = f"{move.how}-{self.channel}-{each.step.number}-{move.source}-{move.target}"
            name, dashes = (
                f"{which}-{same[which]}",
                "none" if move.how == "message" else PEER_MEMORY,
            )
            same[which] += 1
            places = [start, (self.at[move.target] + aside, end)]
            color = label(move.data, self.subject).color
            self.canvas.line(places, color, 1.3, dashes=dashes, arrow=True, name=name)

    def _labels(self, each: RoundLayout, top: float) -> Iterator[tuple[Move, Place]]:
        """Write the labels; yield each move, and where its arrow begins."""
        for rank, parts in each.labels.items():
            x, foot = self.at[rank], top + each.stack - sum(shown.height for shown in parts)
            lowest = [*parts][-1]
            for shown, moves in parts.items():
                middle, foot = foot + shown.height / 2, foot + shown.height
                self._label(shown, x, middle)
                for move in moves:
                    side = shown.width / 2 if move.target > rank else -shown.width / 2
                    yield move, (x, foot - 0.02) if shown is lowest else (x + side, middle)

    def _label(self, shown: Caption, x: float, y: float) -> None:
        if not shown.text:
            return
        size = shown.width, shown.height - 0.03
        corner = x - size[0] / 2, y - size[1] / 2
        self.canvas.box(corner, size, shown.color, level=4, rounded=0.03)
        red, green, blue = shown.color
        color = INK if 0.3 * red + 0.59 * green + 0.11 * blue > 0.55 else "white"
        above, below = (0.33 * LINE, 0.38 * LINE) if shown.origin else (0.0, 0.0)
        self.canvas.text((x, y - above), shown.text, TYPE, color, bold=True, centred=True)
        if shown.origin:
            self.canvas.text((x, y + below), shown.origin, TYPE - 1, color, centred=True)

    def _rule(self, y: float) -> None:
        self.canvas.line([(self.left, y), (self.at[-1] + 0.2, y)], FAINT, 0.6, level=1)


def _sign(canvas: Canvas, what: str, x: float, y: float) -> None:
    """Draw a sign: a sign of a rank has its middle at x, any other sign begins there."""
    if what == "peer":
        canvas.line([(x, y), (x + 0.3, y)], INK, 1.3, dashes=PEER_MEMORY)
    elif what == "barrier":
        canvas.line([(x, y), (x + 0.3, y)], INK, 3)
    elif what == "copy":
        side = 1.5 * MARK
        canvas.box((x - side / 2, y - side / 2), (side, side), "white", INK, level=6)
    else:
        fill, cross = (INK, "white") if what == "final" else ("white", INK)
        canvas.circle((x, y), MARK, fill, INK)
        arm = 0.62 * MARK
        canvas.line([(x - arm, y), (x + arm, y)], cross, 1.1, level=7)
        canvas.line([(x, y - arm), (x, y + arm)], cross, 1.1, level=7)


def _legend(canvas: Canvas, subject: Subject, y: float) -> None:
    """Draw the meaning of each sign that occurs."""
    steps = [step for steps in subject.channels for step in steps]
    kinds = {kind for step in steps for marks in step.marks.values() for kind in marks}
    kinds |= {"peer" for step in steps for move in step.moves if move.how != "message"}
    kinds |= {"barrier" for step in steps if step.meeting}
    x = MARGIN + 0.1
    for what, meaning in MEANINGS.items():
        if what in kinds:
            room = 0.4 if what in ("peer", "barrier") else 0.14
            _sign(canvas, what, x, y)
            canvas.text((x + room, y), meaning, 8, INK)
            x += room + 0.062 * len(meaning) + 0.25
