"""The last collectives as a picture: a row a rank, time from left to right, a bar a call.

`hpccomm explain --output` draws it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from hpccomm.diagnosis.faults import Fault
from hpccomm.diagnosis.history import Job
from hpccomm.drawing.vega import Chart, chart, encoding, layer
from hpccomm.runtime.verdict import numbered

COLORS = {
    "completed": "#9db8d2",
    "waits": "#f0a500",
    "failed": "#c1440e",
    "differs": "#7a1fa2",
    "not called": "#ffffff",
}
"""Kinds of bars, and their colors; "not called" is an outline."""

ROWS = 64
"""The most ranks to draw; ranks named by a fault come first."""


def draw(job: Job, faults: Sequence[Fault], last: int) -> Chart:
    """Return a chart of the last calls before the dumps.

    Parameters
    ----------
    last : int
        Calls of each rank to show.
    """
    ranks = _chosen(job, faults)
    left_out = job.dumps and job.size - len(ranks)
    what = f"{len(ranks)} of {job.size} ranks" if left_out else "each rank"
    kinds = {"domain": list(COLORS), "range": list(COLORS.values())}
    heads = {"domain": [_head(job, rank) for rank in ranks]}
    axis = {"labelLimit": 0, "ticks": False, "domain": False}
    time = {"zero": False, "nice": False}
    bars = {
        "x2": {"field": "end"},
        "color": encoding("kind", "nominal", scale=kinds, legend={"orient": "bottom"}),
        "stroke": {
            "condition": {"test": "datum.kind === 'completed'", "value": None},
            "value": "black",
        },
        "strokeDash": {
            "condition": {"test": "datum.kind === 'not called'", "value": [3, 2]},
            "value": [1, 0],
        },
    }
    text = {"type": "text", "align": "left", "dx": 4, "fontSize": 10}
    return chart(
        f"the last calls of {what}",
        [bar for rank in ranks for bar in _bars(job, faults, rank, last)],
        *(900, {"step": 24}),
        encoding={
            "x": encoding("start", "quantitative", "seconds before the last dump", scale=time),
            "y": encoding("row", "ordinal", scale=heads, axis=axis),
        },
        layer=[
            layer({"type": "bar", "strokeWidth": 0.6}, bars),
            layer(text, {"text": {"field": "label"}}),
        ],
    )


def _bars(job: Job, faults: Sequence[Fault], rank: int, last: int) -> Iterator[dict[str, Any]]:
    """Yield the calls of a rank, or its missing ones."""
    row, held = _head(job, rank), False
    differing = {
        (fault.uid, fault.number)
        for fault in faults
        if fault.sort == "differing" and rank in fault.ranks
    }
    if (dump := job.dumps.get(rank)) is not None:
        until = job.moment(rank, dump.time)
        for call in dump.calls[-last:]:
            begin = job.moment(rank, call.began)
            end = until if call.seconds is None else begin + call.seconds
            kind = call.state if call.state in ("completed", "failed") else "waits"
            if (call.uid, call.number) in differing:
                kind = "differs"
            label = ""
            if kind != "completed":
                held = True  # it waits, or failed, in a call itself
                group = job.histories[call.uid].group.name if call.uid in job.histories else "?"
                label = f"{numbered(call.operation, call.number)} of {group}"
            span = {"start": begin - job.end, "end": end - job.end}
            yield {"row": row, "kind": kind, "label": label, **span}
    for fault in faults if not held else ():
        if fault.sort == "missing" and rank in fault.ranks:
            label = f"has not called {numbered(fault.operation, fault.number)}"
            span = {"start": -fault.seconds, "end": 0.0}
            yield {"row": row, "kind": "not called", "label": label, **span}


def _head(job: Job, rank: int) -> str:
    dump = job.dumps.get(rank)
    return f"rank {rank}  {dump.host if dump else '(no dump)'}"


def _chosen(job: Job, faults: Sequence[Fault]) -> list[int]:
    """Return the ranks to draw: the named ones, then the first of the others."""
    named = dict.fromkeys(
        rank for fault in faults for rank in (*fault.ranks[:8], *fault.waiting[:8])
    )
    order = [*named, *(rank for rank in range(job.size) if rank not in named)]
    return sorted(order[:ROWS])
