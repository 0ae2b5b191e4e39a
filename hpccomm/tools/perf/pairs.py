"""Measure latency and bandwidth of every pair of ranks, and name slow nodes, ranks and pairs.

Pairs that share no link are measured at the same time: in a round each node meets one other. Slow
pairs are measured again. With many ranks the rounds end when --budget is used up, and at the
earliest after the first. The measured pairs then cover all nodes evenly.

The exit status is 0 if nothing is slow, and 1 if something is. It is 4 if nothing is slow, but other
processes keep nodes busy, so that these nodes are undecided. It is 2 if the command failed. A node is slow
if most of its pairs are: a line "# DRAIN host" names its host. A line "# UNDECIDED host" names a busy one.

Examples
--------
  mpiexec -n 8 hpccomm perf pairs
  srun --ntasks-per-node=1 hpccomm perf pairs --expect latency=5us,bandwidth=10G --json verdict.json
  mpiexec -n 64 hpccomm perf pairs --threshold 90% --budget 30s --output pairs.h5
  hpccomm plot --pairs pairs.h5
"""

import argparse
import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import zip_longest
from time import perf_counter
from typing import Any

import numpy as np

import hpccomm
from hpccomm import units
from hpccomm.communicator import Communicator
from hpccomm.errors import ResultsError, UsageError
from hpccomm.reductions import ReduceOp
from hpccomm.results import facts as origin
from hpccomm.results import pairs
from hpccomm.results.pairs import MeasuredPairs, PairLink, Thresholds, locate_slow
from hpccomm.results.schema import Config, RunInfo
from hpccomm.runtime.service import Status
from hpccomm.tools import flags, output
from hpccomm.tools.perf import facts
from hpccomm.tools.perf.facts import on_root
from hpccomm.tools.perf.isolated import one_by_one
from hpccomm.tools.perf.patterns import DEVICE
from hpccomm.units import grouped

# Latency and bandwidth between the ranks of each pair, measured round by round, by all ranks.
#
# Pairs of a round share no link. Between nodes, a round is one of a round-robin tournament of the
# nodes (the circle method, T. Kirkman, 1850), in which each node meets one other; one rank of each of
# the two nodes takes part. Inside nodes, each node has one pair at work. The first rounds cover all
# nodes, and the next ones all ranks: a run that stops early has a fair sample.

Pair = tuple[int, int]
"""Two ranks, the lower one first."""

Round = tuple[Pair, ...]
"""Pairs that are measured at once; no rank is in two of them."""


def tournament(players: Sequence[int]) -> Iterator[list[Pair]]:
    """Yield rounds in which every player meets one other, until all pairs have met once.

    With an odd number of players one of them rests in each round.
    """
    circle: list[int | None] = list(players)
    if len(circle) % 2:
        circle.append(None)
    half = len(circle) // 2
    for _ in range(len(circle) - 1):
        met = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(one, other) for one, other in met if one is not None and other is not None]
        circle.insert(1, circle.pop())


def between(one: Sequence[int], other: Sequence[int]) -> Iterator[Pair]:
    """Yield all pairs of a rank of one node and a rank of another node; the first pairs cover all ranks."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    for shift in range(len(shorter)):
        for number, rank in enumerate(longer):
            partner = shorter[(number + shift) % len(shorter)]
            yield min(rank, partner), max(rank, partner)


def rounds(nodes: Sequence[int]) -> list[Round]:
    """Return rounds that measure every pair of ranks once.

    Parameters
    ----------
    nodes : sequence of int
        The node of each rank.
    """
    members = grouped((node, rank) for rank, node in enumerate(nodes))
    meetings = [
        _abreast(between(members[one], members[other]) for one, other in met)
        for met in tournament(list(members))
    ]
    outside = [pairs for turn in zip_longest(*meetings, fillvalue=()) for pairs in turn]
    inside = _abreast(
        [(min(pair), max(pair)) for met in tournament(each) for pair in met]
        for each in members.values()
    )
    # Both kinds are mixed, so that the first rounds have the same fraction of both.
    share = len(inside) / max(1, len(outside))
    mixed: list[Round] = []
    for number, each in enumerate(outside):
        mixed.append(each)
        mixed += inside[int(number * share) : int((number + 1) * share)]
    mixed += inside[int(len(outside) * share) :]
    return [each for each in mixed if each]


def _abreast(queues: Iterable[Iterable[Pair]]) -> list[Round]:
    """Return rounds of the first pair of each queue, of the second, and so on."""
    return [tuple(filter(None, turn)) for turn in zip_longest(*queues)]


def again(pairs: Sequence[Pair], nodes: Sequence[int]) -> list[Round]:
    """Return rounds that measure some pairs, such that no two pairs of a round share a node."""
    left, planned = list(pairs), []
    while left:
        busy: set[int] = set()
        taken, later = [], []
        for pair in left:
            ends = {nodes[pair[0]], nodes[pair[1]]}
            if busy & ends:
                later.append(pair)
            else:
                busy |= ends
                taken.append(pair)
        planned.append(tuple(taken))
        left = later
    return planned


_WARM = 2
"""Untimed exchanges before the timed ones."""

_AGAIN = 3
"""Most times that pairs are measured again while they seem slow."""


_SMALL = 8
"""Bytes of the messages for latency, and of answers."""


def measure(
    comm: Communicator,
    args: argparse.Namespace,
    thresholds: Thresholds,
    say: Callable[[str], None],
) -> MeasuredPairs | None:
    """Measure the pairs of a communicator. Collective; blocks.

    Slow pairs are measured again, up to three times, and the best figure counts.

    Parameters
    ----------
    comm : Communicator
        The communicator of the ranks.
    args : Namespace
        The values of ``pairs.toml``'s flags.
    thresholds : Thresholds
        Thresholds for slow pairs.
    say : callable
        Called on every rank with the name of the current measurement.

    Returns
    -------
    MeasuredPairs or None
        The measurements on rank 0; None elsewhere.
    """
    rest = facts.rested(comm.barrier)
    nodes, hosts = zip(*comm.all_gather_object((comm.node, origin.host())), strict=True)
    pair_rounds, began = _PairRounds(comm, args, say), perf_counter()
    links = pair_rounds.run(rounds(nodes), began + args.budget)
    number = comm.size * (comm.size - 1) // 2

    def measured() -> MeasuredPairs | None:
        """Return the measurements so far, on rank 0."""
        if links is None:
            return None
        sizes = number, _SMALL, args.bytes
        return MeasuredPairs(nodes, hosts, tuple(links), *sizes, perf_counter() - began)

    for _ in range(_AGAIN):
        so_far = measured()
        slow = [(link.a, link.b) for link in locate_slow(so_far, thresholds).slow] if so_far else []
        repeated = again(comm.broadcast_object(slow), nodes)
        if not repeated:
            break
        more = pair_rounds.run(repeated, began + 2 * args.budget)
        if links is not None and more is not None:
            better = {(link.a, link.b): link for link in more}
            links = [link.better(better.get((link.a, link.b), link)) for link in links]
    others, found = facts.others(comm, rest), measured()
    return found and replace(found, others=others)


class _PairRounds:
    """The measurement of rounds: the arrays of one rank, and its exchanges with partners.

    Every rank makes one, and makes the same calls on it.
    """

    def __init__(
        self, comm: Communicator, args: argparse.Namespace, say: Callable[[str], None]
    ) -> None:
        self._comm, self._args, self._say = comm, args, say
        self._device = args.arrays == DEVICE
        device = comm.device if self._device else None
        self._small: Any = comm.empty((_SMALL,), np.uint8, device=device)
        self._large: Any = comm.empty((args.bytes,), np.uint8, device=device)
        self._small[:] = 0
        self._large[:] = 0

    def run(self, planned: Sequence[Round], deadline: float) -> list[PairLink] | None:
        """Measure rounds, at least one, until the deadline of rank 0; return the links on rank 0, None elsewhere."""
        comm, over = self._comm, np.zeros(1, np.int32)
        measured: dict[Pair, tuple[float, float]] = {}
        for number, turn in enumerate(planned):
            over[0] = comm.rank == 0 and number > 0 and perf_counter() > deadline
            # No rank begins a round before all ranks have ended the last one.
            comm.all_reduce(over, op=ReduceOp.MAX)
            if over[0]:
                break
            self._say(f"round {number + 1} of {len(planned)}: {len(turn)} pairs")
            for pair in turn:
                if comm.rank in pair:
                    measured[pair] = self._pair(sum(pair) - comm.rank, comm.rank == pair[0])
        of_ranks = comm.gather_object(measured)
        if of_ranks is None:
            return None
        links = []
        for a, b in sorted({pair for pairs_of_rank in of_ranks for pair in pairs_of_rank}):
            (latency, there), (_, back) = of_ranks[a][a, b], of_ranks[b][a, b]
            links.append(PairLink(a, b, latency=latency, there=there, back=back))
        return links

    def _pair(self, partner: int, first: bool) -> tuple[float, float]:
        """Return the seconds of a small message in one direction, and the bytes a second of large ones to `partner`."""
        args = self._args
        round_trip = self._exchanges(partner, first, self._small, args.iters)
        forward = self._exchanges(partner, first, self._large, args.streams)
        back = self._exchanges(partner, not first, self._large, args.streams)
        latency = round_trip / 2
        # The answer to a large message is a small one, which takes the latency.
        seconds = (forward if first else back) - latency
        return latency, args.bytes / seconds if seconds > 0 else 0.0

    def _exchanges(self, partner: int, asks: bool, message: Any, times: int) -> float:
        """Exchange a message for a small answer; return the median seconds. `asks`: this rank sends the message."""
        sends, receives = self._comm.send, self._comm.recv
        if self._device:
            sends, receives = _waited(sends), _waited(receives)
        first, second = (sends, receives) if asks else (receives, sends)

        def exchange() -> None:
            first(message, partner)
            second(self._small, partner)

        _, seconds = one_by_one([exchange] * (_WARM + times))
        return float(np.median(seconds[_WARM:]))


def _waited(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call on device arrays that returns when the message has arrived."""
    return lambda message, partner: call(message, partner, async_op=True).wait(block=True)


# The flags, which ``hpccomm slurm`` passes on.


def expected(text: str) -> dict[str, float]:
    """Read the expected latency and bandwidth of pairs, in seconds and bytes a second."""
    read = {"latency": units.seconds, "bandwidth": units.rate}
    parts = [part.partition("=") for part in text.split(",")]
    unitless = any(name == "latency" and not value.endswith("s") for name, _, value in parts)
    try:
        fields = {f"expected_{name}": read[name](value) for name, _, value in parts}
    except (KeyError, ValueError):
        fields = {}
    if unitless or not fields or not all(fields.values()):
        raise ArgumentTypeError(
            f"{text!r} is not an expectation; give latency=5us,bandwidth=10G or one of the two"
        )
    return fields


FLAGS = flags.table(__package__, {"expected": expected}, file="pairs.toml")["flags"]


def run(args: argparse.Namespace) -> int:
    """Measure. Collective: every rank of the job runs it."""
    thresholds = Thresholds(args.threshold, args.latency_threshold, **(args.expect or {}))
    with hpccomm.new_comm(args.backend, timeout=args.timeout, name="perf-pairs") as comm:
        if comm.size < 2:
            raise UsageError(
                "perf pairs needs 2 ranks or more, and there is 1; start it with mpiexec -n"
            )
        config = Config(args.bytes, args.bytes, 0, 0, args.iters, 0, validation=0)
        info = facts.run_info(comm, config)
        with ExitStack() as opened:
            writer = on_root(comm, lambda: _writer(args, info, opened))
            with closing(
                output.Progress(output.terminal() if comm.rank == 0 else None)
            ) as progress:
                measured = measure(comm, args, thresholds, progress.show)

            def report() -> int:
                assert measured is not None
                verdict = locate_slow(measured, thresholds)
                if writer is not None:
                    writer.add_entry(pairs.ENTRY, pairs.entry(measured, thresholds))
                    measured.others.store(writer)
                if args.json is not None:
                    output.write_file(args.json, pairs.as_json(measured, verdict))
                opened.close()  # here, so that a file that cannot be completed is an error on every rank
                output.write(pairs.text(measured, verdict))
                return 1 if verdict.findings else Status.UNDECIDED if verdict.undecided else 0

            return int(comm.broadcast_object(on_root(comm, report)))


def _writer(args: argparse.Namespace, info: RunInfo, opened: ExitStack) -> Any:
    """Return the writer of the results file, or None without one. Raise early if a file cannot be written."""
    for file in filter(None, (args.json, args.output)):
        folder = file.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ResultsError(
                f"cannot write {file}: {folder} is not a folder that can be written to; name another"
            )
        if file.is_dir():
            raise ResultsError(f"cannot write {file}: it is a folder; name a file in it")
    if args.output is None:
        return None
    from hpccomm.results.writer import Writer  # h5py takes long to import

    # Last, since its run stays in the file if another file is refused.
    return opened.enter_context(Writer(args.output, info, expected_rows=0, expected_repetitions=0))
