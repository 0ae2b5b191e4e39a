"""Reads what the plugin NCCL Inspector has written, a file of JSON lines for each process, as a recording.

A line has the last collective of a communicator that had ended when the plugin looked: others between two looks are
missing. With ``NCCL_INSPECTOR_DUMP_VERBOSE=1`` it has when the call was made and when its kernel ended. Else it has how
long the kernel ran, and the end is put where the line was written, which may be late by the interval of the plugin.
A common clock, dtypes and messages are missing.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpccomm.errors import ResultsError
from hpccomm.recordings.exchange.foreign import ForeignCall, recording
from hpccomm.results.recording import DEVICE, RecordedGroup, Recording
from hpccomm.units import counted

SOURCE = "NCCL Inspector"

COLLECTIVES = ["AllGather", "AllReduce", "Broadcast", "Reduce", "ReduceScatter"]
"""NCCL's names of what it counts, each from 0."""


def is_one(data: bytes) -> bool:
    """Whether a file begins as such a one."""
    return data.startswith(b"{") and b'"coll_perf"' in data[:4096]


def read(files: Mapping[Path, bytes]) -> tuple[Recording, list[str]]:
    """Return the recording of the files of some processes, and notes for the user.

    Raises
    ------
    ResultsError
        If no line can be read.
    """
    lines, broken = [], 0
    for text in (text for data in files.values() for text in data.splitlines()):
        try:
            line = json.loads(text)
            about, header = line["metadata"], line["header"]
            if not 0 <= header["rank"] < header["n_ranks"]:
                raise ValueError
            lines.append(((about["hostname"], about["pid"]), header, _call(line)))
        except (ValueError, LookupError, TypeError):
            broken += 1  # a killed process may have left half a line
    if not lines:
        raise ResultsError(f"{next(iter(files))} has no call that can be read; leave it out")
    # The largest communicator has the ranks of the program. One process may have several.
    _, world = max((header["n_ranks"], header["id"]) for _, header, _ in lines)
    of_world = {(process, header["rank"]) for process, header, _ in lines if header["id"] == world}
    several = Counter(process for process, _ in of_world)
    actors: dict[Any, int] = {}
    for process, rank in sorted(of_world, key=lambda each: each[1]):
        actors[process, rank if several[process] > 1 else 0] = len(actors)
    calls: dict[int, list[ForeignCall]] = {}
    hosts: dict[int, str] = {}
    members: dict[str, list[int]] = {}
    for process, header, call in lines:
        actor = (process, header["rank"] if several[process] > 1 else 0)
        at = actors.setdefault(actor, len(actors))
        calls.setdefault(at, []).append(call)
        hosts[at] = process[0].partition(".")[0]
        members.setdefault(call.group, [-1] * header["n_ranks"])[header["rank"]] = at
    notes = [f"{counted(broken, 'line')} could not be read"] if broken else []
    if not all(b'"event_trace_ts"' in data for data in files.values()):
        notes.append(
            "calls end where their lines were written; NCCL_INSPECTOR_DUMP_VERBOSE=1 has their times"
        )
    groups = [RecordedGroup(uid, uid, tuple(ranks)) for uid, ranks in members.items()]
    ranks = range(len(actors))
    return recording(
        [calls[at] for at in ranks], groups, SOURCE, [hosts[at] for at in ranks]
    ), notes


def _call(line: Mapping[str, Any]) -> ForeignCall:
    header, perf = line["header"], line["coll_perf"]
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", perf["coll"]).lower()
    # The same number on all ranks, and of no other call.
    kinds = [*COLLECTIVES, perf["coll"]]
    number = 1 + perf["coll_sn"] * len(kinds) + kinds.index(perf["coll"])
    end = line["metadata"]["dump_timestamp_us"]
    begin = end - perf["coll_exec_time_us"]
    if (times := perf.get("event_trace_ts")) is not None:
        begin = times["coll_start_ts"]
        end = max(each["kernel_stop_ts"] for each in times["kernel_events"])
    # The size is that of the count given to NCCL, which is one rank's there.
    ranks = header["n_ranks"] if name in ("all_gather", "reduce_scatter") else 1
    return ForeignCall(
        header["id"],
        name,
        number,
        perf["coll_msg_size_bytes"] * ranks,
        begin * 1000,
        end * 1000,
        DEVICE,
        {"operation": name},
    )
