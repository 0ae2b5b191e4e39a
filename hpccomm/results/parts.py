"""The parts that the ranks of a program have recorded, each by its own clock, as one recording."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.results.liveness import INTERRUPTED
from hpccomm.results.recording import (
    CALL_COLUMNS,
    COMPLETED,
    Calls,
    CallSignature,
    RecordedGroup,
    Recording,
)
from hpccomm.results.training import TrainingNote
from hpccomm.units import few

_Times = NDArray[np.int64]


def joined(path: Path, name: str, parts: Mapping[int, Recording]) -> Recording:
    """Return the recording of all ranks, with the times of the common clock.

    Parameters
    ----------
    path, name : Path, str
        Of the recording.
    parts : mapping of int to Recording
        The part of each rank; at least one. A note says which are missing.
    """
    facts = parts[min(parts)].facts
    errors = list(facts.clock_error_ns) or [0] * facts.ranks
    groups: dict[str, RecordedGroup] = {}
    signatures: dict[str, CallSignature] = {}
    columns: dict[str, list[NDArray[Any]]] = {each.name: [] for each in CALL_COLUMNS}
    notes: list[TrainingNote] = []
    counts, statuses, damage = [0] * facts.ranks, list[str](), list[str]()
    for rank, part in sorted(parts.items()):
        for group in part.groups:
            known = groups.get(group.uid, group)
            groups[group.uid] = replace(known, ranks=tuple(map(max, known.ranks, group.ranks)))
        numbers = list(groups)
        placed = np.zeros(len(part.signatures), np.int64)
        for number, one in enumerate(part.signatures):
            if one.group >= 0:
                one = replace(one, group=numbers.index(part.groups[one.group].uid))
            signatures.setdefault(repr(one), one)
            placed[number] = list(signatures).index(repr(one))
        for column, values in _calls(part, placed).items():
            columns[column].append(values)
        counts[rank] = len(columns["begin"][-1])
        if part.clock:
            errors[rank] = max(error for _, _, error in part.clock)
        notes += part.notes
        statuses.append(part.status)
        damage += [f"rank {rank}: {each}" for each in part.damage]
    if missing := sorted(set(range(facts.ranks)).difference(parts)):
        lost = few([str(rank) for rank in missing], 8)
        notes.append(TrainingNote(0, f"the calls of these ranks are missing: {lost}"))
        statuses.append(INTERRUPTED)
    statuses.sort(key=lambda status: (not status.startswith("failed"), status == COMPLETED))
    return Recording(
        path,
        name,
        replace(facts, clock_error_ns=tuple(errors)),
        tuple(groups.values()),
        tuple(signatures.values()),
        Calls(
            np.cumsum([0, *counts]),
            {column: np.concatenate(each) for column, each in columns.items()},
        ),
        statuses[0],
        tuple(damage),
        notes=tuple(dict.fromkeys(notes)),
    )


def _calls(part: Recording, placed: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the calls of a part by the common clock, and by the signatures of all."""
    calls = dict(part.calls.columns)
    common = _common(part)
    begin, end, asked = (common(calls[name]) for name in ("begin", "end", "asked"))
    throughout = calls["waited"] == calls["end"] - calls["begin"]
    times = {
        "begin": begin,
        "end": end,
        "asked": np.where(calls["asked"] == 0, 0, asked),
        "waited": np.where(throughout, end - begin, calls["waited"]),
    }
    return calls | times | {"signature": placed.astype("<i4")[calls["signature"]]}


def _common(part: Recording) -> Callable[[_Times], _Times]:
    """Return what makes times of the common clock of a part's: readings lie on straight lines."""
    if not part.clock:
        return lambda times: times
    local, ahead, _ = np.array(part.clock, np.int64).T
    first, least = local[0], ahead[0]  # float64 has the differences to the nanosecond

    def common(times: _Times) -> _Times:
        further = np.interp((times - first).astype(float), local - first, ahead - least)
        shown: _Times = times - least - np.rint(further).astype(np.int64)
        return shown

    return common
