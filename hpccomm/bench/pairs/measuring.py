"""Latency and bandwidth between the ranks of each pair, measured round by round.

`hpccomm.cli.pairs` calls it on all ranks. The rounds come from `hpccomm.bench.pairs.plan`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm.bench.pairs.plan import Pair, Round, again, rounds
from hpccomm.bench.perf.timing import one_by_one
from hpccomm.reductions import ReduceOp
from hpccomm.results import origin
from hpccomm.results.pairs import MeasuredPairs, PairLink, Thresholds, locate_slow

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

_WARM = 2
"""Untimed exchanges before the timed ones."""

_AGAIN = 3
"""How often what seems slow is measured again, as long as it does."""


@dataclass(frozen=True, slots=True)
class PairOptions:
    """How pairs are measured.

    Attributes
    ----------
    small, large : int
        Bytes of the messages for latency and for bandwidth.
    iterations, streams : int
        Numbers of timed exchanges.
    budget : float
        Seconds after which no further round is begun; the same time again for slow pairs.
    device : bool
        Whether arrays lie on the device.
    """

    small: int = 8
    large: int = 1 << 20
    iterations: int = 20
    streams: int = 5
    budget: float = 60.0
    device: bool = False


def measure(
    comm: "Communicator", options: PairOptions, thresholds: Thresholds, say: Callable[[str], None]
) -> MeasuredPairs | None:
    """Measure the pairs of a communicator. Collective; blocks.

    Slow pairs are measured again, up to three times, and the best figure counts.

    Parameters
    ----------
    comm : Communicator
        Of the ranks.
    options : PairOptions
        How.
    thresholds : Thresholds
        What is slow.
    say : callable
        Called on every rank with the name of the current measurement.

    Returns
    -------
    MeasuredPairs or None
        On rank 0.
    """
    nodes, hosts = zip(*comm.all_gather_object((comm.node, origin.host())), strict=True)
    ends = _Ends(comm, options)
    began = perf_counter()
    links = _round_by_round(comm, rounds(nodes), ends, began + options.budget, say)
    pairs = comm.size * (comm.size - 1) // 2

    def measured() -> MeasuredPairs | None:
        """Return the measurements so far, on rank 0."""
        if links is None:
            return None
        sizes = pairs, options.small, options.large
        return MeasuredPairs(nodes, hosts, tuple(links), *sizes, perf_counter() - began)

    for _ in range(_AGAIN):
        so_far = measured()
        slow = [(link.a, link.b) for link in locate_slow(so_far, thresholds).slow] if so_far else []
        repeated = again(comm.broadcast_object(slow), nodes)
        if not repeated:
            break
        more = _round_by_round(comm, repeated, ends, began + 2 * options.budget, say)
        if links is not None and more is not None:
            better = {(link.a, link.b): link for link in more}
            links = [link.better(better.get((link.a, link.b), link)) for link in links]
    return measured()


def _round_by_round(
    comm: "Communicator",
    planned: Sequence[Round],
    ends: "_Ends",
    deadline: float,
    say: Callable[[str], None],
) -> list[PairLink] | None:
    """Measure rounds, at least one, until the deadline of rank 0; return what was found, on rank 0."""
    own: list[tuple[Pair, float, float]] = []
    over = np.zeros(1, np.int32)
    for number, pairs in enumerate(planned):
        over[0] = comm.rank == 0 and number > 0 and perf_counter() > deadline
        comm.all_reduce(over, op=ReduceOp.MAX)  # no rank begins before all have ended the last
        if over[0]:
            break
        say(f"round {number + 1} of {len(planned)}: {len(pairs)} pairs")
        own += [
            (pair, *ends.measure(sum(pair) - comm.rank, comm.rank == pair[0]))
            for pair in pairs
            if comm.rank in pair
        ]
    of_ranks = comm.gather_object(own)
    if of_ranks is None:
        return None
    halves: dict[Pair, dict[int, tuple[float, float]]] = {}
    for rank, measured in enumerate(of_ranks):
        for pair, latency, bandwidth in measured:
            halves.setdefault(pair, {})[rank] = latency, bandwidth
    return [
        PairLink(*pair, latency=half[pair[0]][0], there=half[pair[0]][1], back=half[pair[1]][1])
        for pair, half in sorted(halves.items())
    ]


class _Ends:
    """The arrays of one rank, and its exchanges with a partner."""

    def __init__(self, comm: "Communicator", options: PairOptions) -> None:
        self._comm, self._options = comm, options
        device = comm.device if options.device else None
        self._small: Any = comm.empty((max(1, options.small),), np.uint8, device=device)
        self._large: Any = comm.empty((max(1, options.large),), np.uint8, device=device)
        self._small[:] = 0
        self._large[:] = 0

    def measure(self, partner: int, first: bool) -> tuple[float, float]:
        """Return seconds of a small message, one way, and the bytes a second of large ones to the partner."""
        options = self._options
        round_trip = self._exchanges(partner, first, self._small, options.iterations)
        forward = self._exchanges(partner, first, self._large, options.streams)
        back = self._exchanges(partner, not first, self._large, options.streams)
        latency = round_trip / 2
        # What comes back is one small message, whose time is known where both ends know the latency.
        seconds = (forward if first else back) - latency
        return latency, options.large / seconds if seconds > 0 else 0.0

    def _exchanges(self, partner: int, asks: bool, message: Any, times: int) -> float:
        """Send a message that a small one answers; return the median of the seconds."""
        sends, receives = self._comm.send, self._comm.recv
        if self._options.device:
            sends, receives = _waited(sends), _waited(receives)
        first, second = (sends, receives) if asks else (receives, sends)

        def exchange() -> None:
            first(message, partner)
            second(self._small, partner)

        _, seconds = one_by_one([exchange] * (_WARM + times))
        return float(np.median(seconds[_WARM:]))


def _waited(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call on device arrays that ends when their message is there."""
    return lambda message, partner: call(message, partner, async_op=True).wait(block=True)
