"""Recordings with known times, for tests of what reads them."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpccomm.results.recording import (
    CALL_COLUMNS,
    POLLED,
    STEP,
    Calls,
    CallSignature,
    RecordedGroup,
    Recording,
    RecordingFacts,
)

MICRO = 1000
"""Nanoseconds."""

MARK = CallSignature(STEP, -1, 0, POLLED)


class MadeCall(NamedTuple):
    """A call: its signature, and times in nanoseconds."""

    signature: CallSignature
    number: int
    begin: int
    end: int
    asked: int = 0
    waited: int | None = None  # None: as long as it took, if it blocks
    buffer: int = 0


def all_reduce(
    nbytes: int, mode: str = POLLED, site: str = "step(), train.py line 9"
) -> CallSignature:
    """Return the signature of an all_reduce of float32 in the group of all ranks."""
    values = {"operation": "all_reduce", "dtype": "float32", "count": nbytes // 4, "op": "sum"}
    values |= {"algorithm": "native", "deterministic": False}
    return CallSignature("all_reduce", 0, nbytes, mode, values, site)


def made(
    ranks: Sequence[Sequence[MadeCall]],
    *,
    path: str = "made.h5",
    hosts: Sequence[str] = (),
    groups: Sequence[tuple[int, ...]] = (),
) -> Recording:
    """Return the recording of each rank's calls, in the order of their begins.

    `groups` are the ranks of further communicators than that of all ranks.
    """
    signatures = list(dict.fromkeys(repr(call.signature) for calls in ranks for call in calls))
    by_key = {repr(call.signature): call.signature for calls in ranks for call in calls}
    rows = []
    for calls in ranks:
        for call in calls:
            blocked = call.end - call.begin if call.signature.blocks else 0
            waited = blocked if call.waited is None else call.waited
            place = signatures.index(repr(call.signature))
            rows.append((place, *call[1:5], waited, call.buffer, 0, 0))
    table = np.array(rows, dtype=[(each.name, each.kind) for each in CALL_COLUMNS])
    starts = np.cumsum([0, *map(len, ranks)])
    facts = RecordingFacts(
        started=datetime(2026, 11, 26, tzinfo=UTC),
        user="user",
        arguments=("train.py",),
        hosts=tuple(hosts) or ("node0",) * len(ranks),
        unix_ns=1_700_000_000_000_000_000,
        clock_error_ns=(0,) * len(ranks),
    )
    return Recording(
        Path(path),
        "recording0001",
        facts,
        tuple(RecordedGroup(f"{of}", f"{of}", of) for of in (tuple(range(len(ranks))), *groups)),
        tuple(by_key[key] for key in signatures),
        Calls(starts, {name: table[name] for name in table.dtype.names or ()}),
    )


def repeated(
    *ranks: Sequence[tuple[Any, ...]],
    steps: int = 4,
    every: int = 100,
    mark: int | None = None,
    unit: int = MICRO,
    groups: Sequence[tuple[int, ...]] = (),
) -> Recording:
    """Return the recording of ranks that make the same calls in each of some steps.

    Parameters
    ----------
    *ranks : sequence of tuple
        The calls of each rank: those of `MadeCall` without their numbers, and with times since the step began.
    every, mark : int
        How long a step takes, and when a mark ends it; without one there is no mark.
    unit : int
        Nanoseconds of the unit of all times.
    """
    marks = [] if mark is None else [(MARK, mark, mark)]
    rows: list[list[MadeCall]] = [[] for _ in ranks]
    for row, calls in zip(rows, ranks, strict=True):
        numbers: Counter[int] = Counter()
        for now in range(0, steps * every, every):
            for one, begin, end, *waits in (*calls, *marks):
                collective = not one.marks and "src" not in one.values
                numbers[one.group] += collective
                times = [now + begin, now + end]
                if waits:
                    asked, blocked = waits
                    times += [asked and now + asked, blocked]
                nanoseconds = (round(each * unit) for each in times)
                row.append(MadeCall(one, collective * numbers[one.group], *nanoseconds))
    return made(rows, groups=groups)


def stepped(
    ranks: int, steps: int, compute: Callable[[int, int], int], transfer: int, nbytes: int = 1 << 20
) -> Recording:
    """Return a program that computes and then calls all_reduce in each step, which begins when the last rank is there.

    Parameters
    ----------
    compute : callable
        ``compute(rank, step)`` returns the nanoseconds for which a rank computes before the call.
    transfer : int
        Nanoseconds from the last arrival to the end of the call.
    """
    one = all_reduce(nbytes)
    return in_turn(ranks, steps, compute, lambda _: transfer, lambda _: one)


def in_turn(
    ranks: int,
    count: int,
    compute: Callable[[int, int], int],
    transfer: Callable[[int], int],
    signature: Callable[[int], CallSignature],
    *,
    marks: int = 1,
    hosts: Sequence[str] = (),
) -> Recording:
    """Return a program like that of `stepped`, with calls of any transfer and signature, by their numbers from 0.

    A mark stands behind each `marks` calls; with 0 there is none.
    """
    rows: list[list[MadeCall]] = [[] for _ in range(ranks)]
    now = 0
    for at in range(count):
        arrivals = [now + compute(rank, at) for rank in range(ranks)]
        now = max(arrivals) + transfer(at)
        for row, arrival in zip(rows, arrivals, strict=True):
            row.append(MadeCall(signature(at), at + 1, arrival, now))
            if marks and (at + 1) % marks == 0:
                row.append(MadeCall(MARK, 0, now, now))
    return made(rows, hosts=hosts)
