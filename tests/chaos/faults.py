"""The actions of the faulty rank, and their moments."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .cases import DIFFERING, LINKS, OWN, Case

Note = Callable[..., None]

PLANTED = "planted: this rank fails"

_OTHER_OP = {"SUM": "PROD", "PROD": "SUM", "MAX": "MIN", "MIN": "MAX"}
_OTHER_DTYPE = {
    # Of the same size, and of another.
    "float64": ("int64", "float32"),
    "int64": ("float64", "int32"),
    "float32": ("int32", "float64"),
    "int32": ("float32", "int64"),
}


def twisted(case: Case) -> Case:
    """Return the case as the faulty rank takes it, where its arguments are what is wrong."""
    match case.kind:
        case "shape":
            shorter = case.count // 2 if case.variant % 2 else 0
            return replace(case, count=shorter or case.count * 2)
        case "dtype":
            return replace(case, dtype=_OTHER_DTYPE[case.dtype][case.variant % 2])
        case "op":
            return replace(case, op=_OTHER_OP[case.op])
        case "root":
            return replace(case, root=(case.root + 1) % case.ranks)
        case "algorithm":
            own = OWN[case.collective]
            return replace(case, algorithm=own[0] if case.algorithm not in own else "native")
        case "synchrony":
            return replace(case, asynchronous=not case.asynchronous)
        case "order" if case.operation == "batch":
            return replace(case, companion=False)  # which is how a batch knows that it is swapped
    return case


class Fault:
    """The fault of a case, on one rank.

    Attributes
    ----------
    mine : bool
        Whether this rank is the faulty one.
    """

    def __init__(self, case: Case, rank: int, note: Note) -> None:
        self.case = case
        self.mine = rank == case.faulty
        self._note = note
        self._coming = False

    def due(self, iteration: int) -> bool:
        """Return whether this rank is to do its wrong in this iteration."""
        return self.mine and iteration == self.case.moment

    def reach(self, iteration: int) -> None:
        """Do what befalls a process, or have a timer do it."""
        if not self.due(iteration) or self.case.kind in DIFFERING:
            return
        if self.case.kind in LINKS:
            self._note("fault")
            _change_link(self.case)
        elif not self.case.amid:
            self._note("fault")
            self._befall()
        elif self.case.kind == "exception":  # it has to come in the main thread
            signal.signal(signal.SIGALRM, self._alarm)
            signal.setitimer(signal.ITIMER_REAL, self.case.amid)
            self._coming = True
        else:
            timer = threading.Timer(self.case.amid, self._later)
            timer.daemon = True
            timer.start()
            self._coming = True

    def wait(self) -> None:
        """Wait for what a timer is to do, so that it happens before this process ends."""
        if self._coming:
            time.sleep(60.0)

    def order(self, iteration: int, calls: list[Any]) -> list[Any]:
        """Return the calls of an iteration as this rank makes them."""
        if not self.due(iteration) or self.case.kind not in DIFFERING:
            return calls
        self._note("fault")
        match self.case.kind:
            case "order":
                return calls[::-1]
            case "skipped":
                return calls[1:]
            case "extra":
                return calls[:1] + calls
        return calls

    def _later(self) -> None:
        self._note("fault")
        self._befall()

    def _alarm(self, number: int, frame: object) -> None:
        self._later()

    def _befall(self) -> None:
        match self.case.kind:
            case "kill" | "lost":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "exception":
                raise RuntimeError(PLANTED)
            case "late":
                time.sleep(self.case.deadline * (0.3 + 0.1 * self.case.variant))
            case "overdue":
                time.sleep(self.case.deadline + self.case.overdue)
            case "sys_exit":
                sys.exit(0)
            case "os_exit":
                os._exit(0)


def stay_away(case: Case, note: Note) -> None:
    """Do not come to the first `new_comm` at all."""
    note("fault")
    match case.variant:
        case 0:
            time.sleep(3600.0)
        case 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        case 2:
            sys.exit(0)
        case _:
            os._exit(0)


def _change_link(case: Case) -> None:
    """Slow or cut the link of this rank's host.

    A cut one heals when every deadline is past, so that the launcher can end what it started there.
    """
    if case.kind == "slow_link":
        slow = "tc qdisc replace dev eth0 root tbf rate 20mbit burst 64kb latency 200ms"
        subprocess.run(slow.split(), check=True)
        return
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
    heals = f"sleep {case.deadline + 2.0}; ip link set eth0 up"
    subprocess.Popen(["sh", "-c", heals], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
