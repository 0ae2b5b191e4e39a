"""A run as a picture: the speed of each contender over the library's own call, by size."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contest.contenders import LIBRARY, Contender
from contest.results import Line
from contest.tables import TIMES, size
from hpccomm.schedules.draw.drawing import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 2
SHOWN = range(-4, 6)
"""Powers of two of the ratios that are shown: what is far slower or faster leaves the picture."""


def draw(tables: Sequence[Sequence[Line]], contenders: Sequence[Contender], title: str) -> "Figure":
    """Return a figure with a panel for each collective."""
    rows = -(-len(tables) // COLUMNS)
    figure: Figure = new_figure(11.0, 2.8 * rows + 0.8)
    for number, lines in enumerate(tables, 1):
        axes = figure.add_subplot(rows, COLUMNS, number)
        for place, one in enumerate(contenders):
            drawn = {
                position: line.faster(line.results[one.name])
                for position, line in enumerate(lines)
                if one.name in line.results
            }
            axes.plot(
                list(drawn),
                list(drawn.values()),
                marker="o" if one.ours else "",
                linestyle="-" if one.ours else "--",
                color="black" if one.name == LIBRARY else f"C{place}",
                label=one.name if number == 1 else None,
            )
        axes.set_xticks(range(len(lines)), [size(line.nbytes) for line in lines], fontsize="small")
        axes.set_yscale("log", base=2)
        axes.set_ylim(2.0 ** SHOWN[0], 2.0 ** SHOWN[-1])
        axes.set_yticks([2.0**power for power in SHOWN], [_spelled(power) for power in SHOWN])
        axes.set_title(lines[0].collective, loc="left", fontsize="medium")
        axes.set_ylabel(f"speed over {LIBRARY}")
        axes.grid(visible=True, alpha=0.3)
    figure.suptitle(title, fontsize="medium")
    figure.legend(loc="outside lower center", ncols=len(contenders), fontsize="small")
    figure.set_layout_engine("constrained")
    return figure


def _spelled(power: int) -> str:
    return f"{1 << power}{TIMES}" if power >= 0 else f"1/{1 << -power}"
