"""Proves an algorithm that is not hpccomm's own before it runs.

The author of a function or package need not have proved it. A wrong schedule would give wrong
results, or never end. So its schedule for such a call is run on symbols first: on the same number
of ranks, and on arrays that are short but cut like the call's. A path that a schedule takes only
above some size is not proved. The outcome is kept, so that a proof costs milliseconds once for
each kind of call. A proof is local, and its outcome equal on all ranks. `algorithms` and `on_device` use it.
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
"""Most ranks for a proof. On more it takes too long for a call, and the algorithm should be proved beforehand."""

SOLO_RANKS = 16
"""Most ranks for which each rank's program is built alone, as for its execution."""

MOST_WORK = 100_000_000
"""Most work of a proof. A longer proof is abandoned, and the algorithm refused.

The work is the number of elements that are moved or lie in scratch, plus rows of tables, plus `TABLE_WORK` for each
table. The limit is about 10 s. A limit in seconds would not do: a slow rank might refuse an algorithm that another rank
runs.
"""

TABLE_WORK = 500
"""Number of elements that take as long as the fixed cost of a table or a round."""

PIECES = 3
"""Most pieces of an array in a proof."""


def proven(
    name: str,
    builds: Mapping[Reach, Build],
    call: Signature,
    tuning: Tuning,
    ranks: int,
) -> str:
    """Prove the forms of an algorithm for calls like `call`, and return a fingerprint of their schedules.

    Parameters
    ----------
    name : str
        Name of the algorithm.
    builds : mapping of Reach to callable
        The forms of the algorithm.
    call : Signature
        The call.
    tuning : Tuning
        Parameters of the schedules.
    ranks : int
        Number of ranks.

    Returns
    -------
    str
        8 hexadecimal digits, equal on all ranks that have the same algorithm.

    Raises
    ------
    UsageError
        If the proof fails. The error names the rank and its fault.
    """
    short, cut = _shortened(call, tuning, ranks)
    checksum = 0
    for reach, build in builds.items():
        ordered = bool(call.deterministic) or (reach is Reach.STAGED and call.description.reduces)
        given = name, build, reach, ordered, short, cut, ranks
        try:
            outcome = _outcome(*given)
        except TypeError:  # an argument cannot be hashed
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
        Name of the algorithm.
    build : callable
        Makes the schedule.
    reach : Reach
        The memory that ranks reach of each other.
    ordered : bool
        Whether the algorithm must fold contributions in rank order.
    call : Signature
        A short call of the kind.
    tuning : Tuning
        Parameters of the schedules, shortened like the call.
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
    """Return a short call that resembles `call`, and the parameters for its schedule.

    The cuts leave the same remainders; empty arrays stay empty.
    """
    counts, what = call.counts, call.description
    if call.individual:  # other ranks do not know these counts
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
    """Return a build whose schedules end: too many rounds, or too much work in all of them, raise `Unproven`."""
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
            return built  # the proof refuses it
        count(built.scratch * len(group.rank))
        return replace(built, channels=tuple(partial(limited, each) for each in built.channels))

    return bounded
