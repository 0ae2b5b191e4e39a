"""Reads the dumps of PyTorch's flight recorder, a pickle for each rank, as a recording.

They have when each call was made. For NCCL they have how long it took if ``TORCH_NCCL_ENABLE_TIMING`` was set, and
else when PyTorch noticed its end, up to a tenth of a second late. For Gloo they have no end: such calls are recorded
without a duration. They have no common clock, no reductions and no roots.

A pickle may run any code. So one that has more than plain data is refused.
"""

import io
import json
import pickle
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path, PurePath
from typing import Any, NoReturn

import numpy as np

from hpccomm.dtypes import BFLOAT16
from hpccomm.errors import ResultsError
from hpccomm.recordings.exchange.foreign import ForeignCall, recording
from hpccomm.results.recording import ASYNC, DEVICE, RecordedGroup, Recording

SOURCE = "PyTorch's flight recorder"

DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": BFLOAT16.name,
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
"""PyTorch's names of its types, and NumPy's."""

_ADDED = re.compile(r"^_|_oop$|_base$|_single$|_coalesced$|_into_tensor|_tensor|^all_reduce_(?=b)")
"""What PyTorch adds to the names of calls."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it has {module}.{name}, and plain data is taken alone")


def is_one(data: bytes) -> bool:
    """Whether a file begins as such a dump."""
    return data.startswith(b"\x80") and b"pg_config" in data[:200]


def read(files: Mapping[Path, bytes]) -> tuple[Recording, list[str]]:
    """Return the recording of the dumps of some ranks, and notes for the user.

    Raises
    ------
    ResultsError
        If one is damaged, or its name does not end in its rank.
    """
    names: dict[str, str] = {}
    members: dict[str, set[int]] = {}
    calls: dict[int, list[ForeignCall]] = {}
    for path, data in files.items():
        digits = re.search(r"(?<!\d)\d{1,6}$", path.name)  # more are a date
        if digits is None or int(digits[0]) in calls:
            raise ResultsError(
                f"{path} does not end in a rank of its own, as rank_0 does; name it as PyTorch did"
            )
        try:
            dump = _Plain(io.BytesIO(data)).load()
            for uid, config in dump["pg_config"].items():
                members.setdefault(uid, set()).update(map(int, json.loads(config["ranks"])))
            entries = dump["entries"]
            last = max((_ended(each) or each["time_created_ns"] for each in entries), default=0)
            calls[int(digits[0])] = [_call(each, last) for each in entries]
            for each in entries:
                names.setdefault(*each["process_group"])
        except Exception as error:
            raise ResultsError(
                f"{path} cannot be read as a dump of {SOURCE}: {error!r}; leave it out"
            ) from error
    if not any(calls.values()):
        raise ResultsError(f"{next(iter(files))} has no calls; give the dumps of a program")
    for uid in names:
        using = {rank for rank in calls if any(each.group == uid for each in calls[rank])}
        members[uid] = members.get(uid) or using
    groups = [RecordedGroup(uid, name, tuple(sorted(members[uid]))) for uid, name in names.items()]
    size = 1 + max(max(calls), *(max(members[uid]) for uid in names))
    whole = recording([calls.get(rank, []) for rank in range(size)], groups, SOURCE)
    notes = []
    if absent := size - len(calls):
        notes.append(f"{absent} of {size} ranks have no dump here")
    ended = whole.calls["end"] > whole.calls["begin"]
    if unknown := whole.calls.count - int(ended.sum()):
        notes.append(f"the ends of {unknown} of {whole.calls.count} calls are not known")
    return whole, notes


def _call(entry: Mapping[str, Any], last: int) -> ForeignCall:
    """Return a call of a rank whose dump knows nothing later than `last`."""
    library, _, name = entry["profiling_name"].partition(":")
    name, *peers = re.split(r" |->|<-", name)
    name = _ADDED.sub("", name).lower().replace("allreduce", "all_reduce")
    name = name.replace("allgather", "all_gather")
    dtypes = [*entry["input_dtypes"], *entry["output_dtypes"]]
    sizes = [*entry["input_sizes"], *entry["output_sizes"]]
    numbers = [prod(each) for each in sizes]
    inputs = len(entry["input_sizes"])
    nbytes = [
        number * np.dtype(DTYPES.get(dtype, "uint8")).itemsize
        for number, dtype in zip(numbers, dtypes, strict=False)
    ]
    values: dict[str, Any] = {"operation": name}
    if peers:
        values = {"dst": None, "src": None, "tag": 0}
        values["dst" if name == "send" else "src"] = int(peers[1])
    elif numbers:
        count = min(sum(numbers[:inputs]), sum(numbers[inputs:]) or sum(numbers))
        values |= {"dtype": DTYPES.get(dtypes[0], dtypes[0]), "count": count}
    completed = entry["state"] == "completed" or entry["retired"]
    begin = int(entry["time_created_ns"])
    return ForeignCall(
        entry["process_group"][0],
        name,
        0 if entry["is_p2p"] else entry["collective_seq_id"],
        max(sum(nbytes[:inputs]), sum(nbytes[inputs:])),
        begin,
        (_ended(entry) or begin) if completed else last,
        DEVICE if library == "nccl" else ASYNC,
        values,
        _site(entry["frames"]),
        not completed,
    )


def _ended(entry: Mapping[str, Any]) -> int:
    """Return when a call was complete, in ns of Unix time; 0 if that is not known."""
    noticed = int(entry["time_discovered_completed_ns"] or 0)
    if entry.get("duration_ms") is None:
        return noticed
    took: int = entry["time_created_ns"] + round(entry["duration_ms"] * 1e6)
    return min(took, noticed or took)


def _site(frames: list[Mapping[str, Any]]) -> str:
    """Return the innermost place outside PyTorch, as recordings have it."""
    for frame in frames:
        path = PurePath(frame["filename"])
        if "torch" not in path.parts:
            line = f"{path.name} line {frame['line']}"
            return line if frame["name"] == "<module>" else f"{frame['name']}(), {line}"
    return ""
