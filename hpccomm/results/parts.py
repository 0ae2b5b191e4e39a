"""The parts that the ranks of a program have recorded, each by its own clock, as one recording."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.results.liveness import INTERRUPTED
from hpccomm.results.recording import (
    COMPLETED,
    MISSING,
    Calls,
    CallSignature,
    RecordedGroup,
    Recording,
)
from hpccomm.results.training import TrainingNote
from hpccomm.units import few


def joined(path: Path, name: str, parts: Mapping[int, Recording]) -> Recording:
    """Return the recording of all ranks, with the times of the common clock.

    Parameters
    ----------
    path, name : Path, str
        Of the recording.
    parts : mapping of int to Recording
        The part of each rank; at least one. A note says which are missing.
    """
    first = parts[min(parts)]
    ranks = first.ranks
    errors = list(first.facts.clock_error_ns) or [0] * ranks
    groups: dict[str, RecordedGroup] = {}
    signatures: dict[str, tuple[int, CallSignature]] = {}
    calls = []
    for rank, part in sorted(parts.items()):
        for group in part.groups:
            known = groups.get(group.uid, group)
            groups[group.uid] = replace(known, ranks=tuple(map(max, known.ranks, group.ranks)))
        numbers = [list(groups).index(group.uid) for group in part.groups]
        placed = np.zeros(len(part.signatures), "<i4")
        for number, one in enumerate(part.signatures):
            common = replace(one, group=numbers[one.group] if one.group >= 0 else one.group)
            placed[number], _ = signatures.setdefault(repr(common), (len(signatures), common))
        calls.append(_calls(part, placed))
        if part.clock:
            errors[rank] = max(error for _, _, error in part.clock)
    counts = [parts[rank].calls.count if rank in parts else 0 for rank in range(ranks)]
    notes = dict.fromkeys(note for part in parts.values() for note in part.notes)
    statuses = [part.status for part in parts.values()]
    if missing := sorted({*range(ranks)} - {*parts}):
        notes[TrainingNote(0, f"{MISSING}: {few(missing, 8)}")] = None
        statuses.append(INTERRUPTED)
    return replace(
        first,
        path=path,
        name=name,
        facts=replace(first.facts, clock_error_ns=tuple(errors)),
        groups=tuple(groups.values()),
        signatures=tuple(one for _, one in signatures.values()),
        calls=Calls(
            np.cumsum([0, *counts]),
            {name: np.concatenate([each[name] for each in calls]) for name in calls[0]},
        ),
        status=min(statuses, key=lambda each: (not each.startswith("failed"), each == COMPLETED)),
        damage=tuple(f"rank {rank}: {each}" for rank in parts for each in parts[rank].damage),
        notes=tuple(notes),
        clock=(),
    )


def _calls(part: Recording, placed: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Return the calls of a part by their begins, by the common clock, and by the signatures of all."""
    calls = dict(part.calls.columns)
    begin, end, asked = (_common(part, calls[name]) for name in ("begin", "end", "asked"))
    throughout = calls["waited"] == calls["end"] - calls["begin"]
    calls["waited"] = np.where(throughout, end - begin, calls["waited"])
    calls["asked"] = np.where(calls["asked"] == 0, 0, asked)
    calls |= {"signature": placed[calls["signature"]], "begin": begin, "end": end}
    order = np.argsort(begin, kind="stable")
    return {name: column[order] for name, column in calls.items()}


def _common(part: Recording, times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return times of a part by the common clock: between its readings, clocks run evenly."""
    if not part.clock:
        return times
    local, ahead, _ = np.array(part.clock, np.int64).T
    # float64 holds the differences to the nanosecond.
    more = np.interp((times - local[0]).astype(float), local - local[0], ahead - ahead[0])
    shown: NDArray[np.int64] = times - ahead[0] - np.rint(more).astype(np.int64)
    return shown
