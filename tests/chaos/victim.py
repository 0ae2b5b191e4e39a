"""The program that each rank of a job runs: right calls in a loop, and one fault on one rank.

Each rank appends lines of JSON to a file of its own, so that what it saw outlives it.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from .cases import DEADLINE, DIFFERING, LOOPS, PROCESS, Case, load
from .faults import PLANTED, Fault, stay_away, twisted

CAUGHT = 7
"""Exit status of a rank that caught an error of hpccomm's."""
PATIENCE = 2.0
"""Seconds that a rank stays after a mismatch, for the others to tell theirs: they are told at once."""
PATIENCE_OF_DEADLINES = DEADLINE + 1.0
"""The same after any other error: the others may have to wait for their own deadlines."""
SPOKEN = ("outcome", "done")
ENDLESS = 1_000_000
"""Iterations where the fault comes by a timer: it ends them."""


def world_rank() -> int:
    """Return this process's rank as its launcher says."""
    names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
    return next(int(os.environ[name]) for name in names if name in os.environ)


class Record:
    """What one rank saw."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.rank = rank
        self._file = os.open(path_of(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, event: str, **facts: Any) -> None:
        """Write one line, at once."""
        line = json.dumps({"event": event, "at": time.time(), **facts})
        os.write(self._file, f"{line}\n".encode())

    def outcome(self, error: BaseException) -> None:
        """Note an error of hpccomm's."""
        names = ("communicator", "sequence", "operation", "elapsed", "ranks")
        facts = {name: getattr(error, name, None) for name in names}
        kinds = [each.__name__ for each in type(error).__mro__]
        self.note("outcome", error=kinds[0], kinds=kinds, text=str(error), **facts)

    def wait_for(self, ranks: set[int], seconds: float) -> None:
        """Wait until these ranks have told how it ended for them, for so long at most."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not all(self._has_spoken(rank) for rank in ranks):
            time.sleep(0.02)

    def _has_spoken(self, rank: int) -> bool:
        return any(each["event"] in SPOKEN for each in read(self.folder, rank))


def path_of(folder: Path, rank: int) -> Path:
    """Return the file of a rank's record."""
    return folder / f"rank_{rank}.jsonl"


def read(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Return what a rank noted so far; a line that is not whole is left out."""
    try:
        lines = path_of(folder, rank).read_text().splitlines()
    except FileNotFoundError:
        return []
    events = []
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            events.append(json.loads(line))
    return events


def run(case: Case, rank: int, record: Record) -> None:
    """Make the calls of a case, with its fault."""
    fault = Fault(case, rank, record.note)
    if case.kind == "absent" and fault.mine:
        stay_away(case, record.note)
    import hpccomm

    from .operations import LOOPS_OF

    record.note("ready")
    comm = None
    if case.operation != "creation":
        comm = hpccomm.new_comm(timeout=case.creation_deadline, name="chaos")
        comm.set_timeout(case.deadline)
        record.note("made")
    loop = LOOPS_OF[case.operation](case, comm, rank)

    def iterate(iteration: int) -> None:
        fault.reach(iteration)
        mine = twisted(case) if fault.due(iteration) else case
        for call in fault.order(iteration, loop.calls(iteration, mine)):
            if not call():
                record.note("wrong", iteration=iteration)

    early = case.operation == "finalisation" and case.kind == "order" and fault.mine
    timed = case.amid and case.operation != "finalisation"
    for iteration in range(ENDLESS if timed else LOOPS - early):
        iterate(iteration)
    if comm is None:
        return
    if case.operation != "finalisation":
        comm.finalize()
        return
    fault.reach(LOOPS)
    if fault.due(LOOPS) and case.kind in DIFFERING:
        record.note("fault")
        if case.kind == "skipped":
            return
        if case.kind == "extra":
            iterate(LOOPS - 1)
    comm.finalize()
    record.note("finalized")
    fault.wait()


def main(folder: Path) -> None:
    """Run the case of a folder as one of its ranks."""
    case = load(json.loads((folder / "case.json").read_text()))
    rank = world_rank()
    record = Record(folder, rank)
    record.note("started", pid=os.getpid())
    try:
        run(case, rank, record)
    except (SystemExit, KeyboardInterrupt):
        raise
    except Exception as error:
        import hpccomm

        if not isinstance(error, hpccomm.HpccommError):
            if str(error) != PLANTED:
                record.note("foreign", error=repr(error))
            raise
        record.outcome(error)
        alone = case.kind in (*PROCESS, "absent", "cut_link")
        others = set(range(case.ranks)) - (case.faulty_ranks if alone else set())
        differs = isinstance(error, hpccomm.RankMismatch)
        record.wait_for(others, PATIENCE if differs else PATIENCE_OF_DEADLINES)
        record.note("leaves")
        if not case.caught:
            raise
        if case.returns:
            return
        sys.exit(CAUGHT)
    record.note("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
