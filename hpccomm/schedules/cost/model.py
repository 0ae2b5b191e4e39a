"""The price of an algorithm: the longest path through its messages and folds, in closed form.

Each algorithm has a formula, which gives a few `Path` for each of its stages: those that can be the
longest. Some are chains of messages that wait for each other, others what the busiest port or the
busiest rank has to do. A price is a sum over stages of the longest path; it does not depend on the
number of ranks how long it takes to find. An algorithm without a formula is priced by the rounds of its
schedule.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm
from hpccomm.schedules.cost.case import Case
from hpccomm.schedules.cost.formulas import FORMULAS, Formula
from hpccomm.schedules.cost.network import Level, Network
from hpccomm.schedules.cost.path import Stage, copy
from hpccomm.schedules.cost.rounds import walked
from hpccomm.schedules.schedule import Build, Tuning, world

Ways = list[NDArray[np.float64]]
"""The terms of the paths through each stage."""


def price(
    network: Network, call: Signature, algorithm: str | Algorithm | Build, tuning: Tuning
) -> float:
    """Return the seconds that a call takes.

    Local: sends nothing. By a formula it takes milliseconds; by a schedule, a time that grows with
    rounds times ranks.

    Parameters
    ----------
    network : Network
        On which its ranks are, one node after the other.
    call : Signature
        What is asked for.
    algorithm : str, Algorithm or callable
        The name of an own algorithm: priced by its formula, or by its schedule if it has none. Or the
        algorithm, or its function ``build``: priced by its schedule.
    tuning : Tuning
        What it is told.

    Raises
    ------
    UsageError
        If the collective has no such algorithm, or it does not apply to such a network.
    """
    if isinstance(algorithm, str) and algorithm in FORMULAS[call.collective]:
        seconds = rates(network)
        paths = stages(network, call, algorithm, tuning)
        return network.overhead + float(longest(paths, seconds) @ seconds)
    name, found = _named(call.collective, algorithm)
    _check_reach(network, name, found)
    schedule = found.build(world(network.ranks), call, tuning)
    return network.overhead + walked(schedule, network, call.dtype.itemsize)


def _named(collective: str, algorithm: str | Algorithm | Build) -> tuple[str, Algorithm]:
    """Return the name and the algorithm of what `price` was given."""
    if isinstance(algorithm, str):
        own = ALGORITHMS[collective]
        if algorithm not in own:
            raise UsageError(
                f"algorithm is {algorithm!r}, which {collective} does not have; "
                f"give one of {', '.join(map(repr, own))}, or the function that builds its schedule"
            )
        return algorithm, own[algorithm]
    found = algorithm if isinstance(algorithm, Algorithm) else Algorithm(algorithm)
    return getattr(found.build, "__name__", repr(found.build)), found


def _check_reach(network: Network, name: str, algorithm: Algorithm) -> None:
    """Refuse an algorithm whose ranks share memory where they do not."""
    if algorithm.shared and network.nodes > 1:
        raise UsageError(
            f"algorithm is {name!r}, which takes ranks that share memory, and {network.name} "
            f"has {network.ranks} ranks on {network.nodes} nodes; give at most "
            f"{network.ranks_per_node} ranks, or another algorithm"
        )


def stages(network: Network, call: Signature, algorithm: str, tuning: Tuning) -> list[Ways]:
    """Return the terms of the paths through each stage, of which the longest count.

    Returns
    -------
    list of list of ndarray
        One or two ways to look at it: as if each rank had its ports, and where they queue for them.
        The longer counts. In each, float64 (paths, 8) for each stage, in messages and bytes: what
        `price` multiplies by `rates`.

    Raises
    ------
    UsageError
        If the collective has no such formula, or it does not apply to such a network.
    """
    formulas = FORMULAS[call.collective]
    if algorithm not in formulas:
        fits = ", ".join(repr(name) for name in formulas)
        raise UsageError(
            f"algorithm is {algorithm!r}, which has no formula for {call.collective}; "
            f"give one of {fits}"
        )
    _check_reach(network, algorithm, ALGORITHMS[call.collective][algorithm])
    ways = []
    for crowded in (False, True) if _shares(network) else (False,):
        case = Case(network, call, tuning, crowded=crowded)
        ways.append(_stages(case, formulas[algorithm]))
    itemsize = call.dtype.itemsize
    return [[np.array([path.terms(itemsize) for path in stage]) for stage in way] for way in ways]


def _shares(network: Network) -> bool:
    """Whether ranks of a node share a port."""
    return any(level.ports < network.ranks_per_node for level in network.levels)


def _stages(case: Case, formula: Formula) -> list[Stage]:
    collective = case.call.collective
    if case.ranks == 1:
        copied = collective not in ("broadcast", "barrier") and not case.call.in_place
        return [(copy(case.call.elements),)] if copied else []
    if not case.call.elements and collective != "barrier":
        return []  # messages without elements are not sent
    return formula(case)


def longest(ways: Sequence[Ways], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the terms of the longest path through all stages.

    Parameters
    ----------
    ways : sequence of list of ndarray
        As `stages` gives them.
    seconds : ndarray
        As `rates` gives them.

    Returns
    -------
    ndarray
        float64 (8,).
    """
    found = []
    for way in ways:
        total = np.zeros(len(seconds))
        for terms in way:
            total += terms[np.argmax(terms @ seconds)]
        found.append(total)
    return max(found, key=lambda total: float(total @ seconds))


def rates(network: Network) -> NDArray[np.float64]:
    """Return the seconds of one of each of a path's terms: messages, and bytes.

    Returns
    -------
    ndarray
        float64 (8,): latency, gap and seconds a byte within nodes, the same between nodes, seconds
        a byte of folds and copies. 0 where there is nothing to connect.
    """
    return np.array(
        [*_level(network.inner), *_level(network.across), 1 / network.reduce, 1 / network.copy]
    )


def _level(level: Level | None) -> tuple[float, float, float]:
    return (0.0, 0.0, 0.0) if level is None else (level.latency, level.gap, 1 / level.bandwidth)
