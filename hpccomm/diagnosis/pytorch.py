"""Writes dumps in the form of PyTorch's flight recorder, for PyTorch's analyser.

``python -m torch.distributed.flight_recorder.fr_trace OUT_DIR`` reads pickled files named
``rank_0``, ``rank_1``, ... It knows PyTorch's libraries and calls only, compares sizes, dtypes and
states, and leaves out the rest. So here each call has a name that it knows, and facts that it does
not compare (reduction, root, algorithm) are added to the dtype, which it compares. Messages are
left out, because it takes each call for one of all ranks.

`hpccomm explain --pytorch` calls it.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpccomm.diagnosis.dumps import RecordedCall
from hpccomm.diagnosis.history import Job
from hpccomm.errors import UsageError

VERSION = "2.10"
"""Version of PyTorch's layout."""

_SAME = (
    "all_reduce broadcast reduce all_gather all_gather_v reduce_scatter reduce_scatter_v "
    "gather scatter all_to_all barrier split"
)
KNOWN = {name: name for name in _SAME.split()}
KNOWN |= {"all_to_all_v": "all_to_all_v_single", "window": "new_window"}
"""Names that the analyser knows."""

OTHERWISE = "allreduce_coalesced"
"""The name of every other call there. Its own name stands beside the dtype, and in the stack."""


def write(job: Job, folder: Path) -> list[str]:
    """Write a file for each rank, and return notes for the user.

    Raises
    ------
    UsageError
        If that fails, or the folder holds other files: the analyser would read them too.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own = {f"rank_{rank}" for rank in range(job.size)}
        strange = [each.name for each in folder.iterdir() if each.name not in own]
        if strange:
            raise UsageError(
                f"{folder} is not empty ({strange[0]}), and PyTorch's analyser reads every file of a "
                "folder; name a new folder"
            )
        for rank in job.dumps:
            (folder / f"rank_{rank}").write_bytes(pickle.dumps(document(job, rank)))
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror or error}; choose another folder"
        ) from error
    command = f"python -m torch.distributed.flight_recorder.fr_trace {folder} -p rank_"
    command += " --allow-incomplete-ranks" if len(job.dumps) < job.size else ""
    return [f"written for PyTorch's analyser: {command}"]


def document(job: Job, rank: int) -> dict[str, Any]:
    """Return PyTorch's form of a rank's dump."""
    oldest = {uid: _oldest(job, uid) for uid in job.histories}
    calls = [
        call
        for call in job.dumps[rank].calls
        if call.uid in oldest and call.number >= max(1, oldest[call.uid])
    ]
    return {
        "version": VERSION,
        "pg_config": {
            uid: {
                "name": uid,
                "desc": history.group.name,
                "ranks": str(list(history.group.members)),
            }
            for uid, history in job.histories.items()
            if rank in history.group.members
        },
        "pg_status": {},
        "entries": [entry(job, call, number) for number, call in enumerate(calls)],
    }


def _oldest(job: Job, uid: str) -> int:
    """Return the first collective that all ranks with a record still have: the analyser aligns so."""
    history = job.histories[uid]
    return max((min(calls) for calls in history.calls.values() if calls), default=1)


def entry(job: Job, call: RecordedCall, number: int) -> dict[str, Any]:
    """Return one call as PyTorch records it."""
    group = job.histories[call.uid].group
    name = KNOWN.get(call.operation, OTHERWISE)
    library = "nccl" if str(call.entry.get("profiling_name")).startswith("nccl:") else "gloo"
    inputs, outputs = sizes(call, len(group.members))
    began = int(call.entry.get("time_created_ns") or 0)
    ended = None if call.open or call.seconds is None else began + int(call.seconds * 1e9)
    dtypes = [_beside(call)]
    own = [] if name != OTHERWISE else [{"name": call.operation, "filename": "hpccomm", "line": 0}]
    return {
        **call.entry,
        "record_id": number,
        "pg_id": 0,
        "process_group": (call.uid, group.name),
        "p2p_seq_id": 0,
        "op_id": call.number,
        "profiling_name": f"{library}:{name}",
        **dict.fromkeys(("time_created_ns", "time_discovered_started_ns"), began),
        "time_discovered_completed_ns": ended,
        "duration_ms": call.entry.get("duration_ms"),
        "input_sizes": [inputs],
        "output_sizes": [outputs],
        "input_dtypes": dtypes,
        "output_dtypes": dtypes,
        "state": "started" if call.state == "failed" else call.state,
        "is_p2p": False,
        "retired": not call.open,
        "timeout_ms": call.entry.get("timeout_ms"),
        "frames": own + call.entry["frames"],
    }


def sizes(call: RecordedCall, ranks: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the shapes of input and output as the analyser expects them of a call.

    It is given what must be equal on all ranks; where each rank has counts of its own, nothing.
    """
    count = call.terms.get("count")
    if not isinstance(count, int):
        return [0], [0]
    if call.operation == "all_gather":
        return [count], [count * ranks]
    if call.operation == "reduce_scatter":
        return [count * ranks], [count]
    return [count], [count]


def _beside(call: RecordedCall) -> str:
    """Return the dtype, and beside it the terms that the analyser would not compare."""
    rest = [
        f"{name}={value}"
        for name, value in sorted(call.terms.items())
        if name not in ("dtype", "count", "operation") and value not in (None, False)
    ]
    named = [] if call.operation in KNOWN else [call.operation]
    return " ".join([*named, str(call.terms.get("dtype") or "none"), *rest])
