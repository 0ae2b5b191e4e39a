"""Proves an algorithm that is not hpccomm's own before it runs.

The author of a function or package need not have proved it. A wrong schedule would give wrong
results, or never end. So its schedule for such a call is run on symbols first: on the same number
of ranks, and on arrays that are short but cut like the call's. A path that a schedule takes only
above some size is not proved by this. The outcome is kept, so that it costs milliseconds once for
each kind of call. It is local, and equal on all ranks. `algorithms` and `on_device` ask it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from zlib import crc32

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Reach
from hpccomm.errors import UsageError
from hpccomm.reductions import ReduceOp, code_of
from hpccomm.schedules.proof import (
    ProofCase,
    Unproven,
    actions,
    check_same_program,
    prove_all,
    signatures,
)
from hpccomm.schedules.proof.case import REACHED
from hpccomm.schedules.schedule import Build, Channel, Group, Rounds, Schedule, Tuning, whole

logger = logging.getLogger("hpccomm")

MOST_RANKS = 512
"""On more ranks a proof takes too long for a call; what runs there should be proved beforehand."""

SOLO_RANKS = 16
"""The most ranks for which each rank's program is built alone, as for its execution."""

MOST_WORK = 100_000_000
"""A longer proof is abandoned, and the algorithm refused.

Counted are elements that are moved or lie in scratch, rows of tables, and `TABLE_WORK` for each table: some
10 s in all. Seconds themselves would not do: of two ranks a slow one would refuse what the other one runs.
"""

TABLE_WORK = 500
"""Elements that take as long as the fixed cost of a table or a round."""

PIECES = 3
"""The most pieces of an array in a proof."""


def proven(
    name: str,
    builds: Mapping[Reach, Build],
    call: Signature,
    tuning: Tuning,
    ranks: int,
) -> str:
    """Prove the forms of an algorithm for calls like `call`; return what tells their schedules from others.

    Parameters
    ----------
    name : str
        The algorithm's.
    builds : mapping of Reach to callable
        Its forms.
    call : Signature
        The call.
    tuning : Tuning
        Its parameters.
    ranks : int
        Number of ranks.

    Returns
    -------
    str
        8 hexadecimal digits, equal on all ranks that have the same algorithm.

    Raises
    ------
    UsageError
        If the proof fails. The error says which rank does what wrong.
    """
    short, cut = _shortened(call, tuning, ranks)
    checksum = 0
    for reach, build in builds.items():
        ordered = bool(call.deterministic) or (reach is Reach.STAGED and call.description.reduces)
        given = name, build, reach, ordered, short, cut, ranks
        try:
            outcome = _outcome(*given)
        except TypeError:  # something that cannot be hashed
            outcome = _outcome.__wrapped__(*given)
        if isinstance(outcome, str):
            raise UsageError(f"algorithm {name} is refused: {outcome}")
        checksum = crc32(outcome.to_bytes(4), checksum)
    return f"{checksum:08x}"


@lru_cache(maxsize=1024)
def _outcome(
    name: str,
    build: Build,
    reach: Reach,
    ordered: bool,
    call: Signature,
    tuning: Tuning,
    ranks: int,
) -> int | str:
    """Return the checksum of an algorithm's schedules for calls of one kind, or its fault.

    Parameters
    ----------
    name : str
        The algorithm's.
    build : callable
        Makes its schedule.
    reach : Reach
        The memory that ranks reach.
    ordered : bool
        Whether it must fold contributions in rank order.
    call : Signature
        A short call of the kind; this rank's, if ranks have counts of their own.
    tuning : Tuning
        Its parameters, cut down like the call.
    ranks : int
        Number of ranks.
    """
    if ranks > MOST_RANKS:
        logger.warning(
            "algorithm %s is not proved on %d ranks, which would take long; prove it by "
            "hpccomm.testing.prove beforehand",
            name,
            ranks,
        )
        return crc32(f"{name} {code_of(build)}".encode())
    bounded, reached = _bounded(build, ranks), REACHED.get(reach.value, frozenset())
    cases = [
        ProofCase(
            f"{name} {call.name} on {ranks} ranks, {'in' if in_place else 'out of'} place",
            bounded,
            _calls(call, ranks, in_place),
            tuning,
            ordered,
            reached,
            solo=ranks <= SOLO_RANKS,
        )
        for in_place in (False, True)
    ]
    some = (0, ranks // 2, ranks - 1)
    try:
        prove_all(cases)
        if ranks > SOLO_RANKS:
            check_same_program(cases[0], some)
        does = [
            [list(actions(channel(), rank)) for channel in part.schedule.channels]
            for part in cases[0].parts()
            for rank in part.ranks.tolist()
            if rank in some
        ]
        return crc32(repr(does).encode(), crc32(code_of(build).encode()))
    except (Unproven, UsageError) as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 (any error of the function)
        return f"on {ranks} ranks it fails: {error!r}"


def _shortened(call: Signature, tuning: Tuning, ranks: int) -> tuple[Signature, Tuning]:
    """Return a short call that is like one, and what its schedule is built with.

    The same remainders are left at the cuts; empty arrays stay empty.
    """
    counts, what = call.counts, call.description
    if call.individual:  # which other ranks do not know
        short = call.counts[:0]
    elif not what.blockwise:
        short = tuple(each if each < 3 * ranks else 2 * ranks + each % ranks for each in counts)
    elif call.uniform:
        short = tuple(each if each < 8 else 4 + each % 4 for each in counts)
    else:
        least, most = min(filter(None, counts), default=0), max(counts)
        short = tuple(0 if not n else 1 if n == least else 3 if n == most else 2 for n in counts)
    pieces = min(-(-call.elements // tuning.segment), PIECES)
    segment = max(1, -(-sum(short) // pieces)) if pieces > 1 and short else whole
    op = call.op if isinstance(call.op, ReduceOp) or call.op is None else ReduceOp.SUM
    received = tuple(short) if what.individual and call.uniform else ()
    like = call._replace(
        counts=short, recv_counts=received, peers=(), op=op, in_place=False, deterministic=False
    )
    return like, replace(tuning, segment=segment)


def _calls(call: Signature, size: int, in_place: bool) -> tuple[Signature, ...]:
    """Return the calls of all ranks."""
    count: int | Sequence[int] | Sequence[Sequence[int]]
    if call.description.peers:
        count = 2
    elif not call.counts and call.description.individual:
        count = [[(i + 2 * j) % 3 for j in range(size)] for i in range(size)]
    elif call.uniform or not call.description.blockwise:
        count = call.counts[0]
    else:
        count = call.counts
    return signatures(
        call.collective,
        size,
        count,
        root=max(call.root, 0),
        in_place=in_place,
        exclusive=call.exclusive,
        dtype=call.dtype,
        op=call.op or ReduceOp.SUM,
    )


def _bounded(build: Build, ranks: int) -> Build:
    """Return a function whose schedules end: too many rounds, or too much in all of them, is a fault."""
    done = 0
    most = ranks * ranks + 16 * ranks + 1024

    def count(more: int) -> None:
        nonlocal done
        done += more
        if done > MOST_WORK:
            raise Unproven(
                f"on {ranks} ranks it moves and keeps too much for a proof before a call; "
                "let it take less scratch, or fewer and smaller messages and steps"
            )

    def limited(channel: Channel) -> Rounds:
        for number, each in enumerate(channel()):
            if number >= most:
                raise Unproven(
                    f"it has more than {most} rounds on {ranks} ranks, or they never end"
                )
            tables = (*each.receives, *each.sends, *each.local)
            count(TABLE_WORK * (1 + len(tables)))
            count(sum(len(table.rank) + int(np.sum(table.count)) for table in tables))
            yield each

    def bounded(group: Group, call: Signature, tuning: Tuning) -> Schedule:
        built = build(group, call, tuning)
        if not isinstance(built, Schedule):
            return built  # which the proof refuses
        count(built.scratch * len(group.rank))
        return replace(built, channels=tuple(partial(limited, each) for each in built.channels))

    return bounded
