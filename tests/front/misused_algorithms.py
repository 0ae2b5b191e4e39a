"""Algorithms that do not exist, or not for a call: the error lists the ones that do."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from front.misuse import refused
from hpccomm.contracts.collectives import BLOCKWISE, REDUCTIONS
from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.oracle import Spec
from hpccomm.testing.conformance.trials import trial

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

MISUSED = Behaviours("misused_algorithms")

EVERY = sorted({name for own in ALGORITHMS.values() for name in own} | {"auto", "native"})
"""The name of each algorithm of any call."""


@MISUSED.behaviour()
def unknown_names(comm: Communicator) -> None:
    """An algorithm that does not exist, or does not apply, is refused with those that do."""
    x = np.ones(comm.size)
    with refused(comm) as attempt:
        for name, call in (
            ("all_reduce", lambda a: comm.all_reduce(x, algorithm=a)),
            ("broadcast", lambda a: comm.broadcast(x, algorithm=a)),
            ("all_gather", lambda a: comm.all_gather(x, algorithm=a)),
            ("all_to_all", lambda a: comm.all_to_all(x, algorithm=a)),
            ("scan", lambda a: comm.scan(x, algorithm=a)),
            ("explain", lambda a: comm.explain("all_reduce", x, algorithm=a)),
        ):
            for algorithm in ("no_such", "", 3):
                words = ("algorithm", repr(algorithm), "auto")
                attempt(name, UsageError, words, call, algorithm)
        # No backend's own collective is elementwise in Python.
        attempt(
            "native",
            UsageError,
            ("algorithm", "native"),
            lambda: comm.all_reduce(x, np.hypot, algorithm="native"),
        )


def calls_of(comm: Communicator, collective: str) -> list[tuple[str, dict[str, Any]]]:
    """Return a collective's calls with keywords: of even and uneven blocks, and in rank order."""
    if collective == "barrier":
        return [("barrier", {})]
    asked = [Spec(collective, 2)]
    if collective in BLOCKWISE:
        asked.append(Spec(collective, tuple(range(comm.size))))
    calls = [(spec.call, dict(trial(comm, spec).arguments)) for spec in asked]
    if collective in REDUCTIONS:
        calls += [(call, {**keywords, "deterministic": True}) for call, keywords in calls]
    return calls


@MISUSED.behaviour(collective=tuple(ALGORITHMS))
def of_other_calls(comm: Communicator, collective: str) -> None:
    """A name that does not apply is refused with those that do, which are those that are taken."""
    with refused(comm) as attempt:
        for call, keywords in calls_of(comm, collective):
            what = f"{call}, deterministic {'deterministic' in keywords}"
            taken = set()
            listed = {}
            for name in EVERY:
                try:
                    comm.explain(call, **keywords, algorithm=name)
                    taken.add(name)
                except UsageError as error:
                    listed[name] = set(
                        re.findall(r"'(\w+)'", str(error).partition("give one of")[2])
                    )
            assert "auto" in taken, what
            known = {"auto", "native", *ALGORITHMS[collective]}
            assert taken <= known, f"{what}: {taken}"
            for name, fits in listed.items():
                assert fits == taken, (
                    f"{what}: {taken} are taken, and the error of {name} lists {fits}"
                )
                words = ("algorithm", repr(name), call)
                make = partial(getattr(comm, call), **keywords, algorithm=name)
                attempt(f"{what}, by {name}", UsageError, words, make)
