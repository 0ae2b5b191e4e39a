"""Jobs that are played through, with faults planted, and the dumps that their ranks would leave.

Here a rank runs a list of calls. A collective completes when all members of its communicator have
come to it, and asked for the same. What is wrong is therefore known by construction.
"""

import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpccomm.tools.explain.dumps import read_folder
from hpccomm.tools.explain.faults import Fault, find
from hpccomm.tools.explain.job import Job, join

BEGAN = 1.7e9
DEADLINE = 5.0


class Made(NamedTuple):
    """A call that a program makes."""

    uid: str
    operation: str = "all_reduce"
    terms: Mapping[str, Any] = {}
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


def explained(documents: Mapping[int, Mapping[str, Any]]) -> tuple[Job, list[Fault]]:
    """Write the dump of each rank; return what is read of them, and the faults that are found."""
    with tempfile.TemporaryDirectory() as folder:
        job = join(read_folder(write(documents, Path(folder))).dumps)
    return job, find(job)


def only_fault(documents: Mapping[int, Mapping[str, Any]]) -> tuple[Fault, str]:
    """Return the fault that is found in the dumps, which is but one, and what is said of it."""
    _, (fault,) = explained(documents)
    return fault, fault.sentence


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
        self.programs[rank][at] = call._replace(operation=operation, terms=call.terms | changed)

    def play(self) -> list[list[dict[str, Any]]]:
        """Return what each rank records."""
        clock = [0.0] * len(self.programs)
        records: list[list[dict[str, Any]]] = [[] for _ in clock]
        moved = True
        while moved:
            moved = False
            for rank, (own, program) in enumerate(zip(records, self.programs, strict=True)):
                if len(own) < len(program) and _is_out(own):
                    call = program[len(own)]
                    clock[rank] += 0.001 + self.delays.get((rank, len(own)), 0.0)
                    number = 1 + sum(each["made"].uid == call.uid for each in own)
                    own.append({"made": call, "number": number, "began": clock[rank]})
                    moved = True
            for uid, members in self.groups.items():
                inside = [records[rank][-1] for rank in members if not _is_out(records[rank])]
                asked = [(each["number"], *each["made"][:3]) for each in inside]
                here = [each for each in asked if each[1] == uid]
                if here and here[:1] * len(members) == asked:
                    end = max(clock[rank] for rank in members) + 0.0005
                    for rank, each in zip(members, inside, strict=True):
                        clock[rank] = each["ended"] = end
                    moved = True
        self.end = max(clock) + self.deadline
        return records

    def documents(self) -> dict[int, dict[str, Any]]:
        """Return the dump of each rank that leaves one."""
        found = {}
        for rank, record in enumerate(self.play()):
            ahead = BEGAN + self.clocks.get(self.hosts[rank], 0.0)
            mine = {uid: ranks for uid, ranks in self.groups.items() if rank in ranks}
            who = {"rank": rank, "host": self.hosts[rank], "pid": 1000 + rank}
            found[rank] = {
                **who,
                "hpccomm": "0.1.0",
                "reason": "a deadline passed",
                "time": ahead + self.end,
                "world_size": len(self.programs),
                "pg_config": {uid: {"desc": uid, "ranks": [*ranks]} for uid, ranks in mine.items()},
                "entries": [_entry(each, number, ahead) for number, each in enumerate(record, 1)],
                "now": {uid: who | _now(uid, record) for uid in mine},
                "answers": {uid: self._answers(ranks) for uid, ranks in mine.items()},
                "stacks": [],
            }
        return {rank: each for rank, each in found.items() if rank not in self.silent}

    def write(self, folder: Path) -> Path:
        """Write the dumps."""
        return write(self.documents(), folder)

    def _answers(self, ranks: Sequence[int]) -> dict[str, dict[str, str]]:
        return {
            str(at): {"state": self.silent[rank], "host": self.hosts[rank]}
            for at, rank in enumerate(ranks)
            if self.silent.get(rank, "none") != "none"
        }


def _is_out(record: list[dict[str, Any]]) -> bool:
    """Whether a rank is in no call."""
    return not record or "ended" in record[-1]


def _now(uid: str, record: list[dict[str, Any]]) -> dict[str, Any]:
    own = [each for each in record if each["made"].uid == uid]
    return {
        "collective": len(own),
        "done": sum("ended" in each for each in own),
        "now": None,
        "doing": f"step(), train.py line {41 if _is_out(record) else 39}",
        "failed": None,
        "closed": "",
    }


def _entry(record: dict[str, Any], number: int, ahead: float) -> dict[str, Any]:
    made, began, ended = record["made"], record["began"], record.get("ended")
    return {
        "process_group": [made.uid, made.uid],
        "collective_seq_id": record["number"],
        "op_id": number,
        "profiling_name": f"mpi:{made.operation}",
        "time_created_ns": int((ahead + began) * 1e9),
        "duration_ms": None if ended is None else (ended - began) * 1e3,
        "state": "started" if ended is None else "completed",
        "is_p2p": False,
        "timeout_ms": DEADLINE * 1e3,
        "frames": [{"name": "step", "filename": "/home/me/train.py", "line": made.line}],
        "terms": {**made.terms, "mode": "polled"},
        "error": None,
    }
