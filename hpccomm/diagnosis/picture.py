"""The last collectives as a picture: a row a rank, time from left to right, a bar a call."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpccomm.diagnosis.faults import Fault
from hpccomm.diagnosis.history import Job
from hpccomm.schedules.draw.drawing import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "completed": "#9db8d2",
    "waits": "#f0a500",
    "failed": "#c1440e",
    "differs": "#7a1fa2",
    "not called": "#ffffff",
}
"""Kinds of bars, and their colours; "not called" is an outline."""

ROWS = 64
"""Ranks that are drawn at most; those that a fault names come first."""


def draw(job: Job, faults: Sequence[Fault], last: int) -> "Figure":
    """Return a figure of the last calls before the dumps.

    Parameters
    ----------
    last : int
        Calls of each rank to show.

    Raises
    ------
    ConfigurationError
        If matplotlib is missing.
    """
    ranks = _chosen(job, faults)
    figure = new_figure(11.0, 1.6 + 0.32 * len(ranks))
    axes = figure.add_subplot()
    end = job.end
    odd = {
        (rank, fault.uid, fault.number)
        for fault in faults
        if fault.sort == "differing"
        for rank in fault.ranks
    }
    held = set()  # ranks that wait, or failed, in a call themselves
    for row, rank in enumerate(ranks):
        dump = job.dumps.get(rank)
        until = end if dump is None else job.moment(rank, dump.time)
        for call in () if dump is None else dump.calls[-last:]:
            begin = job.moment(rank, call.began)
            kind = (
                "differs"
                if (rank, call.uid, call.number) in odd
                else {"completed": "completed", "failed": "failed"}.get(call.state, "waits")
            )
            length = (until - begin) if call.seconds is None else call.seconds
            _bar(axes, row, begin - end, length, kind)
            if kind != "completed":
                held.add(rank)
                group = job.histories[call.uid].group.name if call.uid in job.histories else "?"
                label = f"{call.operation} #{call.number}" if call.number else call.operation
                label = f"{label} of {group}"
                axes.text(begin - end, row, f" {label}", va="center", fontsize=7)
        for fault in faults:
            if fault.sort == "missing" and rank in fault.ranks and rank not in held:
                start = -fault.seconds
                _bar(axes, row, start, fault.seconds, "not called")
                which = f"{fault.operation} #{fault.number}" if fault.number else fault.operation
                axes.text(start, row, f" has not called {which}", va="center", fontsize=7)
    axes.set_yticks(range(len(ranks)), [_head(job, rank) for rank in ranks], fontsize=8)
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    axes.set_xlabel("seconds before the last dump")
    left = len(job.dumps) and job.size - len(ranks)
    axes.set_title(
        f"the last calls of {len(ranks)} of {job.size} ranks"
        if left
        else "the last calls of each rank",
        loc="left",
        fontsize="medium",
    )
    handles = [
        axes.barh([0], [0], color=colour, edgecolor="black", linewidth=0.5, label=kind)
        for kind, colour in COLOURS.items()
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    axes.grid(visible=True, axis="x", alpha=0.3)
    figure.set_layout_engine("tight")
    return figure


def _bar(axes: object, row: int, begin: float, length: float, kind: str) -> None:
    axes.barh(  # type: ignore[attr-defined]
        row,
        length,
        left=begin,
        height=0.62,
        color=COLOURS[kind],
        edgecolor="none" if kind == "completed" else "black",
        linewidth=0.5,
        linestyle="--" if kind == "not called" else "-",
    )


def _head(job: Job, rank: int) -> str:
    dump = job.dumps.get(rank)
    return f"rank {rank}  {dump.host}" if dump is not None else f"rank {rank}  (no dump)"


def _chosen(job: Job, faults: Sequence[Fault]) -> list[int]:
    """Return the ranks to draw: those that are named, and of the others those that come first."""
    named = dict.fromkeys(
        rank for fault in faults for rank in (*fault.ranks[:8], *fault.waiting[:8])
    )
    order = [*named, *(rank for rank in range(job.size) if rank not in named)]
    return sorted(order[:ROWS])
