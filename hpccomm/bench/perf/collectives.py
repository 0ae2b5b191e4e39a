"""The collectives that can be measured, and how each is called.

What a collective moves, and with it how it is called, follows from its description
(`hpccomm.contracts.collectives`). Bus bandwidth is size / time times a factor that makes the figure
comparable with the hardware's (nccl-tests, doc/PERFORMANCE.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.bench.perf import layouts
from hpccomm.bench.perf.layouts import Layout, Member
from hpccomm.contracts.collectives import DESCRIPTIONS, Collective, ring
from hpccomm.reductions import Op

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

Array = NDArray[Any]
Call = Callable[[], object]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a call: positional, and by keyword."""


@dataclass(frozen=True, slots=True)
class Operands:
    """What a rank has for a call.

    Attributes
    ----------
    x, out : array, 1-D, or None
        None where the rank has none; in place, `x` is `out` or part of it.
    op : ReduceOp, PremulSum or None
        The reduction.
    layout : Layout
        What the arrays hold.
    member : Member
        The rank.
    """

    x: Array | None
    out: Array | None
    op: Op | None
    layout: Layout
    member: Member


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A collective, as it is measured.

    Attributes
    ----------
    name : str
        Its name on the communicator.
    what : Collective
        What it is.
    arrange : callable
        ``arrange(size, itemsize, member)`` gives the layout of a case.
    arguments : callable
        ``arguments(operands)`` gives the arguments of the call.
    names_op : bool
        Whether its lines name the reduction of ``-o`` though nothing is reduced, as those of
        nccl-tests' sendrecv do.
    algorithms : bool
        Whether it takes ``--algorithm``.
    """

    name: str
    what: Collective
    arrange: Callable[[int, int, Member], Layout]
    arguments: Callable[[Operands], Arguments]
    names_op: bool = False
    algorithms: bool = True

    @property
    def factor(self) -> Callable[[int], float]:
        """``factor(ranks)`` is bus bandwidth over algorithm bandwidth."""
        return self.what.bus_factor

    @property
    def reduces(self) -> bool:
        """Whether it takes ``-o``."""
        return self.what.reduces

    @property
    def rooted(self) -> bool:
        """Whether it takes ``-r``."""
        return self.what.rooted

    @property
    def moves(self) -> bool:
        """Whether it moves data at all."""
        return self.what.sends != "nothing"

    @property
    def in_place(self) -> bool:
        """Whether it can be called in place."""
        return self.what.in_place != "never"


def benchmark(name: str) -> Benchmark:
    """Return the benchmark of a collective on blocks of one size."""
    what = DESCRIPTIONS[name]
    return Benchmark(name, what, partial(layouts.layout, what), partial(_arguments, what))


def _arguments(what: Collective, operands: Operands) -> Arguments:
    if what.sends == "nothing":
        return (), {}
    keywords: dict[str, Any] = {"root": operands.layout.root} if what.rooted else {}
    if what.in_place == "always":  # one array, and no output beside it
        return (operands.out,), keywords
    if what.reduces:
        keywords["op"] = operands.op
    peers = (ring(operands.member.rank, operands.member.ranks),) if what.peers else ()
    by_default = what.in_place == "by default" and operands.out is operands.x
    return (operands.x, *peers), {**keywords, "out": None if by_default else operands.out}


def _uneven_arguments(operands: Operands) -> Arguments:
    counts = operands.layout.send_counts, operands.layout.recv_counts
    return (operands.x, *counts), {"out": operands.out}


def _ring_arguments(operands: Operands) -> Arguments:
    rank, ranks = operands.member.rank, operands.member.ranks
    return (operands.x, (rank + 1) % ranks, operands.out, (rank - 1) % ranks), {}


_SEND_RECV = Collective("send_recv", "whole", "whole", lambda _ranks: 1.0, "on request")

_UNCOMMON = {
    "all_to_all_v": Benchmark(
        "all_to_all_v", DESCRIPTIONS["all_to_all"], layouts.uneven_exchange, _uneven_arguments
    ),
    "send_recv": Benchmark(
        "send_recv",
        _SEND_RECV,
        layouts.ring_shift,
        _ring_arguments,
        names_op=True,
        algorithms=False,
    ),
}
"""Calls whose sizes or arguments do not follow from a description."""

_FIRST = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "all_to_all",
    "all_to_all_v",
    "gather",
    "scatter",
    "send_recv",
)
"""What nccl-tests has, in the order of ``all``; other collectives follow."""

COLLECTIVES: dict[str, Benchmark] = {
    name: _UNCOMMON.get(name) or benchmark(name)
    # No data are known of which the fold of every first part is exact: a scan is not verified.
    for name in dict.fromkeys((*_FIRST, *DESCRIPTIONS))
    if name in _UNCOMMON or not DESCRIPTIONS[name].prefix
}
"""Every collective that can be measured, in the order of ``all``."""


def bind(
    comm: "Communicator",
    collective: Benchmark,
    operands: Operands,
    how: dict[str, Any],
    copy: Callable[[Any, Any], None] = np.copyto,
) -> Call:
    """Return the call without arguments; `how` is passed on to it, ``copy(out, x)`` copies an array."""
    args, keywords = collective.arguments(operands)
    call: Call = partial(getattr(comm, collective.name), *args, **keywords, **how)
    x, out = operands.x, operands.out
    if collective.what.in_place != "always" or x is None or out is None or x is out:
        return call

    # A broadcast has no output. Out of place, the root's own copy is part of the work, as it is in
    # NCCL's.
    def copied() -> None:
        copy(out, x)
        call()

    return copied
