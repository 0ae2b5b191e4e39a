"""A run as a picture: the speed of each contender over the library's own call, against size."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contest.contenders import LIBRARY, Contender
from contest.results import Line
from contest.tables import TIMES, size
from hpccomm.plots.drawing import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 2


def draw(tables: Sequence[Sequence[Line]], contenders: Sequence[Contender], title: str) -> "Figure":
    """Return a figure with a panel for each collective."""
    rows = -(-len(tables) // COLUMNS)
    figure = new_figure(11.0, 3.0 * rows + 0.5)
    for number, lines in enumerate(tables, 1):
        axes = figure.add_subplot(rows, COLUMNS, number)
        for place, one in enumerate(contenders):
            with_it = [line for line in lines if one.name in line.results]
            axes.plot(
                [line.nbytes for line in with_it],
                [line.faster(line.results[one.name]) for line in with_it],
                marker="o" if one.ours else "",
                linestyle="-" if one.ours else "--",
                color="black" if one.name == LIBRARY else f"C{place}",
                label=one.name,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        ticks = [line.nbytes for line in lines]
        axes.set_xticks(ticks, [size(tick) for tick in ticks], rotation=30, fontsize="small")
        axes.yaxis.set_major_formatter(lambda value, _position: f"{value:g}{TIMES}")
        axes.set_title(lines[0].collective, loc="left", fontsize="medium")
        axes.set_ylabel(f"speed over {LIBRARY}")
        axes.grid(visible=True, alpha=0.3)
        if number == 1:
            axes.legend(fontsize="small")
    figure.suptitle(title, fontsize="medium")
    figure.set_layout_engine("tight")
    return figure
