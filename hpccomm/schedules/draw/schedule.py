"""A schedule as a picture: a column for each rank, rounds downwards, an arrow for each message."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpccomm.schedules.draw.drawing import new_figure
from hpccomm.schedules.draw.layout import (
    INK,
    LINE,
    MARK,
    MEETING,
    TYPE,
    Caption,
    Colour,
    RoundLayout,
    label,
    pitch,
    row,
)
from hpccomm.schedules.draw.subject import Subject
from hpccomm.schedules.draw.trace import DrawnStep, Move

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

CENTRED: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 5}
"""How text stands at its place."""

PEER_MEMORY = (0, (2.5, 1.5))  # dashes
MEANINGS = {
    "fold": "folds",
    "final": "folds: complete",
    "copy": "copies",
    "peer": "a peer's memory",
    "barrier": "barrier",
}
"""Of the signs, left to right."""

Start = tuple[float, float, Colour]
"""Where an arrow begins, and its colour."""


def draw(subject: Subject) -> "Figure":
    """Draw a schedule.

    Each channel is a panel. The label at the beginning of an arrow says which elements move, and whose
    contributions they hold. Colours go from the first element to the last. Arrows have ids,
    ``message-C-R-S-T-I``: channel, round, sender, receiver, and a number among equal ones. The ids begin
    with ``read-`` or ``write-`` where a rank accesses its peer's memory.

    Raises
    ------
    ConfigurationError
        If matplotlib is missing.
    """
    new_figure(1, 1)  # raises before the work if matplotlib is missing
    panels = [[row(step, subject) for step in steps] for steps in subject.channels]
    apart = pitch([each for rows in panels for each in rows])
    panel = GUTTER + apart * subject.size
    words = max(0.112 * len(subject.title), 0.076 * len(subject.summary))
    width = 2 * MARGIN + max(len(panels) * (panel + BETWEEN) - BETWEEN, words, LEGEND)
    tall = max((sum(each.height for each in rows) for rows in panels), default=0.0)
    head = HEAD + ABOVE * (len(panels) > 1 or subject.topology.num_nodes > 1)
    height = 2 * MARGIN + head + tall + 2 * RANKS + FOOT
    figure = new_figure(width, height)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    axes.text(MARGIN, MARGIN + 0.12, subject.title, size=12, weight="bold", color=INK, va="center")
    axes.text(MARGIN, MARGIN + 0.38, subject.summary, size=9, color=INK, va="center")
    for number, rows in enumerate(panels):
        left = MARGIN + number * (panel + BETWEEN)
        at = [left + GUTTER + apart * (rank + 0.5) for rank in range(subject.size)]
        _Panel(axes, subject, number, left, at, MARGIN + head, tall).draw(rows)
    _legend(axes, subject, height - MARGIN - FOOT / 2)
    return figure


@dataclass(frozen=True, slots=True, eq=False)
class _Panel:
    """Draws one channel.

    Attributes
    ----------
    left, top : float
        Its upper left corner, in inches.
    at : sequence of float
        Where each rank is.
    tall : float
        Inches of all rounds.
    """

    axes: "Axes"
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
            self.axes.text(self.left, self.top - 0.06, name, size=9, color=INK, va="center")
        circle: dict[str, str | Colour] = {"boxstyle": "circle,pad=0.3", "fc": INK, "ec": "none"}
        for rank, x in enumerate(self.at):
            self.axes.plot([x, x], [first - 0.12, last + 0.12], color=FAINT, lw=1.2, zorder=1)
            for y in (first - RANKS / 2, last + RANKS / 2):
                self.axes.text(x, y, str(rank), size=8.5, color="white", bbox=circle, **CENTRED)
        y = first
        last_number = -1
        for each in rows:
            number = each.step.number
            if number != last_number:
                self._rule(y)
                middle = y + each.height / 2
                self.axes.text(self.left + 0.14, middle, str(number), size=8, color=PALE, **CENTRED)
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
                self.axes.fill_between([left, right], self.top, bottom, color=NODE, lw=0, zorder=0)
            middle = (left + right) / 2
            self.axes.text(middle, self.top - 0.06, f"node {node}", size=8, color=INK, **CENTRED)

    def _step(self, each: RoundLayout, y: float) -> None:
        bottom = y + each.height
        if each.step.meeting:
            bottom -= MEETING
            for group in each.step.meeting:
                ends = [self.at[min(group)] - 0.12, self.at[max(group)] + 0.12]
                _bar(self.axes, ends, bottom + MEETING / 2)
        marks = bottom - 0.03 - MARK
        marked = self._marks(each.step, marks)
        starts = self._labels(each, y + 0.06)
        arriving: dict[int, list[Move]] = defaultdict(list)
        for move in each.step.moves:
            arriving[move.target].append(move)
        same: Counter[tuple[str, int, int]] = Counter()
        for move in each.step.moves:
            crowd = arriving[move.target]
            spread = min(0.09, 0.3 / max(len(crowd) - 1, 1))
            aside = (crowd.index(move) - (len(crowd) - 1) / 2) * spread
            end = marks - (MARK if move.target in marked else -MARK)
            which = (move.how, move.source, move.target)
            name = (
                f"{move.how}-{self.channel}-{each.step.number}-{move.source}-{move.target}"
                f"-{same[which]}"
            )
            same[which] += 1
            self._arrow(move, starts[id(move)], (self.at[move.target] + aside, end), name)

    def _labels(self, each: RoundLayout, top: float) -> dict[int, Start]:
        """Write the labels; return where each move begins, by its identity."""
        starts: dict[int, Start] = {}
        for rank, kept in each.labels.items():
            x = self.at[rank]
            y = top + each.stack - sum(shown.height for shown, _ in kept)
            for place, (shown, moves) in enumerate(kept):
                middle, foot = y + shown.height / 2, y + shown.height
                self._label(shown, x, middle)
                for move in moves:
                    colour = label(move.data, self.subject).colour
                    side = shown.width / 2 if move.target > rank else -shown.width / 2
                    lowest = place == len(kept) - 1
                    begin = (x, foot - 0.02) if lowest else (x + side, middle)
                    starts[id(move)] = (*begin, colour)
                y = foot
        return starts

    def _label(self, shown: Caption, x: float, y: float) -> None:
        from matplotlib.patches import FancyBboxPatch

        if not shown.text:
            return
        width, height, round_by = shown.width, shown.height - 0.03, 0.03
        self.axes.add_patch(
            FancyBboxPatch(
                (x - width / 2 + round_by, y - height / 2 + round_by),
                width - 2 * round_by,
                height - 2 * round_by,
                boxstyle=f"round,pad={round_by}",
                fc=shown.colour,
                ec="none",
                zorder=4,
            )
        )
        red, green, blue = shown.colour
        colour = INK if 0.3 * red + 0.59 * green + 0.11 * blue > 0.55 else "white"
        above, below = (0.33 * LINE, 0.38 * LINE) if shown.whose else (0.0, 0.0)
        self.axes.text(x, y - above, shown.text, size=TYPE, color=colour, weight="bold", **CENTRED)
        if shown.whose:
            self.axes.text(x, y + below, shown.whose, size=TYPE - 1, color=colour, **CENTRED)

    def _arrow(self, move: Move, start: Start, end: tuple[float, float], name: str) -> None:
        from matplotlib.patches import FancyArrowPatch

        x, y, colour = start
        arrow = FancyArrowPatch(
            (x, y),
            end,
            arrowstyle="-|>",
            mutation_scale=8,
            lw=1.3,
            color=colour,
            ls="-" if move.how == "message" else PEER_MEMORY,
            shrinkA=0,
            shrinkB=0,
            zorder=3,
        )
        arrow.set_gid(name)
        self.axes.add_patch(arrow)

    def _marks(self, step: DrawnStep, y: float) -> set[int]:
        """Draw the signs of local steps; return the ranks that have one."""
        kinds: dict[int, list[str]] = defaultdict(list)
        for mark in step.marks:
            kinds[mark.rank].append(mark.what)
        for rank, signs in kinds.items():
            for place, what in enumerate(signs):
                _mark(self.axes, what, self.at[rank] + 2.4 * MARK * place, y)
        return set(kinds)

    def _rule(self, y: float) -> None:
        self.axes.plot([self.left, self.at[-1] + 0.2], [y, y], color=FAINT, lw=0.6, zorder=1)


def _mark(axes: "Axes", what: str, x: float, y: float) -> None:
    """Draw the sign of a local step."""
    from matplotlib.patches import Circle, Rectangle

    if what == "copy":
        side = 1.5 * MARK
        corner = (x - side / 2, y - side / 2)
        axes.add_patch(Rectangle(corner, side, side, fc="white", ec=INK, lw=1, zorder=6))
        return
    full = what == "final"
    axes.add_patch(Circle((x, y), MARK, fc=INK if full else "white", ec=INK, lw=1, zorder=6))
    arm = 0.62 * MARK
    colour = "white" if full else INK
    axes.plot([x - arm, x + arm], [y, y], color=colour, lw=1.1, zorder=7)
    axes.plot([x, x], [y - arm, y + arm], color=colour, lw=1.1, zorder=7)


def _bar(axes: "Axes", ends: Sequence[float], y: float) -> None:
    """Draw the sign of a barrier."""
    axes.plot(ends, [y, y], color=INK, lw=3, solid_capstyle="round", zorder=3)


def _legend(axes: "Axes", subject: Subject, y: float) -> None:
    """Draw the meaning of each sign that occurs."""
    steps = [step for steps in subject.channels for step in steps]
    kinds = {mark.what for step in steps for mark in step.marks}
    kinds |= {"peer" for step in steps for move in step.moves if move.how != "message"}
    kinds |= {"barrier" for step in steps if step.meeting}
    x = MARGIN + 0.1
    for what, meaning in MEANINGS.items():
        if what not in kinds:
            continue
        room = 0.14 if what in ("fold", "final", "copy") else 0.4
        if what == "peer":
            axes.plot([x, x + 0.3], [y, y], color=INK, lw=1.3, ls=PEER_MEMORY)
        elif what == "barrier":
            _bar(axes, [x, x + 0.3], y)
        else:
            _mark(axes, what, x, y)
        axes.text(x + room, y, meaning, size=8, color=INK, va="center_baseline")
        x += room + 0.062 * len(meaning) + 0.25
