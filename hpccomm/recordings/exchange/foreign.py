"""A recording of the calls that another program's recorder wrote down."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpccomm.results import origin
from hpccomm.results.recording import (
    CALL_COLUMNS,
    Calls,
    CallSignature,
    RecordedGroup,
    Recording,
    RecordingFacts,
)


class ForeignCall(NamedTuple):
    """A call: the name of its communicator, its number there, and its times in ns of Unix time."""

    group: str
    operation: str
    number: int
    nbytes: int
    begin: int
    end: int
    mode: str
    values: Mapping[str, Any] = {}
    site: str = ""
    failed: bool = False


def recording(
    ranks: Sequence[Sequence[ForeignCall]],
    groups: Sequence[RecordedGroup],
    source: str,
    hosts: Sequence[str] = (),
) -> Recording:
    """Return the recording of the calls of each rank. The clocks of the hosts are taken as they are.

    Parameters
    ----------
    ranks : sequence of sequences of ForeignCall
        By rank of the program.
    groups : sequence of RecordedGroup
        The communicators.
    source : str
        What wrote the calls down: it stands for the command line.
    hosts : sequence of str, optional
        By rank.
    """
    first = min(call.begin for calls in ranks for call in calls)
    number = {group.uid: at for at, group in enumerate(groups)}
    signatures: dict[str, tuple[int, CallSignature]] = {}
    rows = []
    for calls in ranks:
        for call in sorted(calls, key=lambda each: each.begin):
            what = CallSignature(
                call.operation, number[call.group], call.nbytes, call.mode, call.values, call.site
            )
            at, _ = signatures.setdefault(repr(what), (len(signatures), what))
            times = (call.begin - first, max(call.begin, call.end) - first)
            rows.append((at, call.number, *times, 0, 0, 0, 0, call.failed))
    table = np.array(rows, [(each.name, each.kind) for each in CALL_COLUMNS])
    facts = RecordingFacts(
        datetime.fromtimestamp(first / 1e9, UTC),
        origin.user(),
        (source,),
        tuple(hosts) or ("",) * len(ranks),
        first,
    )
    return Recording(
        Path(),
        "",
        facts,
        tuple(groups),
        tuple(what for _, what in signatures.values()),
        Calls(
            np.cumsum([0, *map(len, ranks)]), {each.name: table[each.name] for each in CALL_COLUMNS}
        ),
    )
