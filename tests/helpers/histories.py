"""Jobs that are played through, with faults planted, and the dumps that their ranks would leave.

Here a rank runs a list of calls. A collective completes when all members of its communicator have
come to it, and asked for the same. What is wrong is therefore known by construction.
"""

import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpccomm.tools.explain import explain, faults
from hpccomm.tools.explain.dumps import read_folder

BEGAN = 1.7e9
DEADLINE = 5.0


@dataclass(frozen=True)
class Made:
    """A call that a program makes."""

    uid: str
    operation: str = "all_reduce"
    terms: Mapping[str, Any] = field(default_factory=dict, hash=False)
    line: int = 1


def loop(uid: str, steps: int, seed: int = 0) -> list[Made]:
    """Return a program of one communicator."""
    draw = random.Random(seed)
    return [
        Made(uid, operation, {"count": 1 << draw.randrange(12), "dtype": "float32"}, 10 + at)
        for at in range(steps)
        for operation in [draw.choice(["all_reduce", "broadcast", "all_gather", "barrier"])]
    ]


def write(documents: Mapping[int, Mapping[str, Any]], folder: Path) -> Path:
    """Write the dump of each rank."""
    folder.mkdir(exist_ok=True)
    for rank, document in documents.items():
        (folder / f"rank_{rank}.json").write_text(json.dumps(document))
    return folder


_NO_COLLECTIVE = {"is_p2p": True, "collective_seq_id": 0}
MESSAGE = {**_NO_COLLECTIVE, "profiling_name": "mpi:recv", "terms": {"src": 1}}
"""What is different in the entry of a message."""


def explained(documents: Mapping[int, Mapping[str, Any]]) -> tuple[faults.Job, list[faults.Fault]]:
    """Write the dump of each rank; return what is read of them, and the faults that are found."""
    with tempfile.TemporaryDirectory() as folder:
        job = faults.join(read_folder(write(documents, Path(folder))).dumps)
    return job, faults.find(job)


def only_fault(documents: Mapping[int, Mapping[str, Any]]) -> tuple[faults.Fault, str]:
    """Return the fault that is found in the dumps, which is but one, and what is said of it."""
    job, (fault,) = explained(documents)
    return fault, explain.sentence(job, fault)


class PlayedJob:
    """A job: groups of ranks, and the program of each rank.

    Parameters
    ----------
    groups : mapping of str to sequence of int
        The ranks of each communicator.
    programs : sequence of list of Made
        Of each rank.
    hosts : sequence of str, optional
        Of each rank.
    clocks : mapping of str to float
        By how much each host's clock is ahead.
    """

    def __init__(
        self,
        groups: Mapping[str, Sequence[int]],
        programs: Sequence[list[Made]],
        hosts: Sequence[str] = (),
        clocks: Mapping[str, float] | None = None,
    ) -> None:
        self.groups, self.programs = groups, [list(each) for each in programs]
        self.hosts = hosts or ["n0"] * len(programs)
        self.clocks = clocks or {}
        self.deadline = DEADLINE  # seconds after the last call until the dumps are written
        self.delays: dict[tuple[int, int], float] = {}
        self.silent: dict[int, str] = {}  # ranks that leave no dump, and what others know of them

    def change(self, rank: int, at: int, **changed: Any) -> None:
        """Let a rank ask for something else in its call number `at`, from 0."""
        call = self.programs[rank][at]
        operation = changed.pop("operation", call.operation)
        terms = {**call.terms, **changed}
        self.programs[rank][at] = replace(call, operation=operation, terms=terms)

    def play(self) -> list[list[dict[str, Any]]]:
        """Return what each rank records."""
        size = len(self.programs)
        clock = [0.0] * size
        position = [0] * size
        numbers = [dict.fromkeys(self.groups, 0) for _ in range(size)]
        records: list[list[dict[str, Any]]] = [[] for _ in range(size)]
        inside: dict[int, tuple[Made, int]] = {}
        moved = True
        while moved:
            moved = False
            for rank in range(size):
                if rank in inside or position[rank] == len(self.programs[rank]):
                    continue
                call = self.programs[rank][position[rank]]
                clock[rank] += 0.001 + self.delays.get((rank, position[rank]), 0.0)
                numbers[rank][call.uid] += 1
                inside[rank] = call, numbers[rank][call.uid]
                records[rank].append(
                    {"made": call, "number": inside[rank][1], "began": clock[rank]}
                )
                moved = True
            for uid, members in self.groups.items():
                here = {rank: inside[rank] for rank in members if rank in inside}
                asked = {
                    (call.uid, number, call.operation, json.dumps(dict(call.terms)))
                    for call, number in here.values()
                }
                if len(here) == len(members) and len(asked) == 1 and next(iter(asked))[0] == uid:
                    end = max(clock[rank] for rank in members) + 0.0005
                    for rank in members:
                        clock[rank] = end
                        del inside[rank]
                        position[rank] += 1
                        records[rank][-1]["ended"] = end
                    moved = True
        self.end = max(clock) + self.deadline
        return records

    def documents(self) -> dict[int, dict[str, Any]]:
        """Return the dump of each rank that leaves one."""
        records = self.play()
        stopped = [not each or "ended" in each[-1] for each in records]
        found = {}
        for rank, record in enumerate(records):
            ahead = BEGAN + self.clocks.get(self.hosts[rank], 0.0)
            entries = [self._entry(each, number, ahead) for number, each in enumerate(record)]
            mine = {uid: ranks for uid, ranks in self.groups.items() if rank in ranks}
            now = {uid: self._now(rank, uid, records, stopped) for uid in mine}
            found[rank] = {
                "hpccomm": "0.1.0",
                "reason": "a deadline passed",
                "time": ahead + self.end,
                "rank": rank,
                "world_size": len(self.programs),
                "host": self.hosts[rank],
                "pid": 1000 + rank,
                "pg_config": {
                    uid: {"desc": uid, "ranks": list(ranks)} for uid, ranks in mine.items()
                },
                "entries": entries,
                "now": now,
                "answers": {
                    uid: {
                        str(at): {"state": self.silent[other], "host": self.hosts[other]}
                        for at, other in enumerate(ranks)
                        if self.silent.get(other, "none") != "none"
                    }
                    for uid, ranks in mine.items()
                },
                "stacks": [],
            }
        return {rank: each for rank, each in found.items() if rank not in self.silent}

    def write(self, folder: Path) -> Path:
        """Write the dumps."""
        return write(self.documents(), folder)

    def _now(self, rank: int, uid: str, records: Any, stopped: list[bool]) -> dict[str, Any]:
        own = [each for each in records[rank] if each["made"].uid == uid]
        return {
            "rank": rank,
            "host": self.hosts[rank],
            "pid": 1000 + rank,
            "collective": own[-1]["number"] if own else 0,
            "done": max((each["number"] for each in own if "ended" in each), default=0),
            "now": None,
            "doing": "step(), train.py line 41" if stopped[rank] else "step(), train.py line 39",
            "failed": None,
            "closed": "",
        }

    @staticmethod
    def _entry(record: dict[str, Any], number: int, ahead: float) -> dict[str, Any]:
        made = record["made"]
        ended = record.get("ended")
        began = int((ahead + record["began"]) * 1e9)
        return {
            "process_group": [made.uid, made.uid],
            "collective_seq_id": record["number"],
            "op_id": number + 1,
            "profiling_name": f"mpi:{made.operation}",
            "time_created_ns": began,
            "duration_ms": None if ended is None else (ended - record["began"]) * 1e3,
            "state": "started" if ended is None else "completed",
            "is_p2p": False,
            "timeout_ms": DEADLINE * 1e3,
            "frames": [{"name": "step", "filename": "/home/me/train.py", "line": made.line}],
            "terms": {**made.terms, "mode": "polled"},
            "error": None,
        }
