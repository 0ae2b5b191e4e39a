"""The program that each rank of a job runs: right calls in a loop, and one fault on one rank.

Each rank appends lines of JSON to a file of its own, so that what it saw outlives it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .cases import ARRAYS, DEADLINE, DIFFERING, LOOPS, OWN, PROCESS, Case

CAUGHT = 7
"""Exit status of a rank that caught an error of hpccomm's."""
PATIENCE = 2.0
"""Seconds that a rank stays after a mismatch, for the others to tell theirs: they are told at once."""
PATIENCE_OF_DEADLINES = DEADLINE + 1.0
"""The same after any other error: the others may have to wait for their own deadlines."""
ENDLESS = 1_000_000
"""Iterations where the fault comes by a timer: it ends them."""
PLANTED = "planted: this rank fails"
SURVIVABLE = (*ARRAYS, "object", "message", "window", "split")
"""Operations whose communicator is there before the fault and after it."""

_OTHER_OP = {"SUM": "PROD", "PROD": "SUM", "MAX": "MIN", "MIN": "MAX"}
_OTHER_DTYPE = {
    # Of the same size, and of another.
    "float64": ("int64", "float32"),
    "int64": ("float64", "int32"),
    "float32": ("int32", "float64"),
    "int32": ("float32", "int64"),
}


def path_of(folder: Path, rank: int) -> Path:
    """Return the file of what a rank saw."""
    return folder / f"rank_{rank}.jsonl"


def read(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Return what a rank noted so far; a line that is not whole is left out."""
    events = []
    with contextlib.suppress(FileNotFoundError):
        for line in path_of(folder, rank).read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                events.append(json.loads(line))
    return events


def twisted(case: Case) -> Case:
    """Return the case as the faulty rank takes it, where its arguments are what is wrong."""
    odd, own = case.variant % 2, OWN.get(case.collective, ())
    changes: dict[str, dict[str, Any]] = {
        "shape": {"count": (case.count // 2 if odd else 0) or case.count * 2},
        "dtype": {"dtype": _OTHER_DTYPE[case.dtype][odd]},
        "op": {"op": _OTHER_OP[case.op]},
        "root": {"root": (case.root + 1) % case.ranks},
        "algorithm": {"algorithm": "native" if case.algorithm in own else (*own, None)[0]},
        "synchrony": {"asynchronous": not case.asynchronous},
        # Which is how a batch knows that it is swapped.
        "order": {"companion": case.companion and case.operation != "batch"},
    }
    return replace(case, **changes.get(case.kind, {}))


def befall(case: Case) -> None:
    """Do to this process or to its host's link what the case says."""
    # Of a rank that stays away from the first `new_comm`: how.
    absent = ("absent", "stop", "sys_exit", "os_exit")[case.variant]
    match absent if case.kind == "absent" else case.kind:
        case "absent":
            signal.pause()  # until the job ends
        case "kill" | "lost":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exception":
            raise RuntimeError(PLANTED)
        case "late":  # time is the fault itself
            time.sleep(case.deadline * (0.3 + 0.1 * case.variant))
        case "overdue":
            time.sleep(case.deadline + case.overdue)
        case "sys_exit":
            sys.exit(0)
        case "os_exit":
            os._exit(0)
        case "slow_link":
            slow = "tc qdisc replace dev eth0 root tbf rate 20mbit burst 64kb latency 200ms"
            subprocess.run(slow.split(), check=True)
        case "cut_link":
            subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
            # When every deadline is past, so that the launcher can end what it started there.
            heals = f"sleep {case.deadline + 2.0}; ip link set eth0 up"
            subprocess.Popen(["sh", "-c", heals], stdout=-3, stderr=-3)


class Rank:
    """One rank of a job, which notes what it sees, and does its wrong if it is the faulty one."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")  # as launchers say it
        self.rank = next(int(os.environ[name]) for name in names if name in os.environ)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(path_of(folder, self.rank), flags, 0o644)
        self._coming = False

    def note(self, event: str, **facts: Any) -> None:
        """Write one line, at once."""
        line = json.dumps({"event": event, "at": time.time(), **facts})
        os.write(self._file, f"{line}\n".encode())

    def due(self, iteration: int) -> bool:
        """Return whether this rank is to do its wrong in this iteration."""
        return self.rank == self.case.faulty and iteration == self.case.moment

    def reach(self, iteration: int) -> None:
        """Do what befalls a process or a link, or have a timer do it."""

        def strike(*_: object) -> None:
            self.note("fault")
            befall(self.case)

        if not self.due(iteration) or self.case.kind in DIFFERING:
            return
        self._coming = self.case.amid > 0
        if not self._coming:
            strike()
        elif self.case.kind == "exception":  # it has to come in the main thread
            signal.signal(signal.SIGALRM, strike)
            signal.setitimer(signal.ITIMER_REAL, self.case.amid)
        else:
            timer = threading.Timer(self.case.amid, strike)
            timer.daemon = True
            timer.start()

    def order(self, iteration: int, calls: list[Callable[[], bool]]) -> list[Callable[[], bool]]:
        """Return the calls of an iteration as this rank makes them."""
        if not self.due(iteration) or self.case.kind not in DIFFERING:
            return calls
        self.note("fault")
        differently = {"order": calls[::-1], "skipped": calls[1:], "extra": calls[:1] + calls}
        return differently.get(self.case.kind, calls)

    def run(self) -> None:
        """Make the calls of the case, with its fault."""
        case = self.case
        if case.kind == "absent":
            self.reach(0)
        import hpccomm

        from .operations import Calls

        self.note("ready")
        comm = None
        if case.operation != "creation":
            comm = self.comm = hpccomm.new_comm(timeout=case.creation_deadline, name="chaos")
            comm.set_timeout(case.deadline)
            self.note("made")
        calls = Calls(case, comm, self.rank)

        def iterate(iteration: int) -> None:
            self.reach(iteration)
            mine = twisted(case) if self.due(iteration) else case
            for call in self.order(iteration, calls.of(iteration, mine)):
                if not call():
                    self.note("wrong", iteration=iteration)

        at_the_end = case.operation == "finalisation"
        early = at_the_end and case.kind == "order" and self.rank == case.faulty
        for iteration in range(ENDLESS if case.amid and not at_the_end else LOOPS - early):
            iterate(iteration)
        if comm is None:
            return
        if at_the_end:
            self.reach(LOOPS)
            if self.due(LOOPS) and case.kind in DIFFERING:
                self.note("fault")
                if case.kind == "skipped":
                    return
                if case.kind == "extra":
                    iterate(LOOPS - 1)
        comm.finalize()
        if at_the_end:
            self.note("finalized")
            if self._coming:
                signal.pause()  # what a timer is to do happens before this process ends

    def tell(self, error: Exception) -> bool:
        """Note an error, and wait until the others have told theirs; return whether the program catches it."""
        import hpccomm

        if not isinstance(error, hpccomm.HpccommError):
            if str(error) != PLANTED:
                self.note("foreign", error=repr(error))
            return False
        case, kinds = self.case, [each.__name__ for each in type(error).__mro__]
        ranks = getattr(error, "ranks", None)
        self.note("outcome", error=kinds[0], kinds=kinds, text=str(error), ranks=ranks)
        alone = case.kind in (*PROCESS, "absent", "cut_link")
        others = set(range(case.ranks)) - (case.faulty_ranks if alone else set())
        differs = isinstance(error, hpccomm.RankMismatch)
        until = time.monotonic() + (PATIENCE if differs else PATIENCE_OF_DEADLINES)
        while time.monotonic() < until and not all(map(self._has_spoken, others)):
            time.sleep(0.02)
        self.note("leaves")
        if case.kind == "lost" and case.caught and case.amid and case.operation in SURVIVABLE:
            self.go_on()
        return case.caught

    def go_on(self) -> None:
        """Go on without the lost rank: make smaller communicators until one reduces rightly."""
        import hpccomm

        comm, left = self.comm, self.case.ranks - 1
        try:
            while True:
                with contextlib.suppress(hpccomm.PeerLost, hpccomm.CommunicatorAborted):
                    comm = comm.shrink()
                    assert comm.all_reduce(1 + comm.rank) == left * (left + 1) // 2
                    return
        except Exception as error:
            self.note("foreign", error=f"after the loss: {error!r}")
            raise

    def _has_spoken(self, rank: int) -> bool:
        return any(each["event"] in ("outcome", "done") for each in read(self.folder, rank))


def main(folder: Path) -> None:
    """Run the case of a folder as one of its ranks."""
    rank = Rank(Case(**json.loads((folder / "case.json").read_text())), folder)
    rank.note("started", pid=os.getpid())
    try:
        rank.run()
    except Exception as error:
        if not rank.tell(error):
            raise
        if rank.case.returns:
            return
        sys.exit(CAUGHT)
    rank.note("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
