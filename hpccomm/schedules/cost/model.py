"""The price of an algorithm on a network: the time of its schedule's rounds there.

``hpccomm simulate`` asks for it, and fits by it.
"""

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms import KNOWN, Algorithm, AnyAlgorithm
from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.cost.rounds import coefficients, walked
from hpccomm.schedules.schedule import Schedule, Tuning, world


def price(network: Network, call: Signature, algorithm: AnyAlgorithm, tuning: Tuning) -> float:
    """Return the seconds that a call takes.

    Local: sends nothing. The time it takes grows with rounds times ranks; an `estimate` takes
    microseconds.

    Parameters
    ----------
    network : Network
        The network of the ranks, one node after the other.
    call : Signature
        The call.
    algorithm : str, Algorithm or callable
        The name of one of hpccomm's own algorithms; or the algorithm, or its function ``build``.
    tuning : Tuning
        Further arguments of the algorithm.

    Raises
    ------
    UsageError
        If the collective has no such algorithm, or it does not apply to such a network.
    """
    schedule = _schedule(network, call, algorithm, tuning)
    return network.overhead + walked(schedule, network, call.dtype.itemsize)


def linear_price(
    network: Network, call: Signature, algorithm: AnyAlgorithm, tuning: Tuning
) -> tuple[float, NDArray[np.float64]]:
    """Return the same seconds, and how many of each parameter they are made of.

    Parameters and errors are as of `price`.

    Returns
    -------
    float
        Seconds.
    ndarray of float64, shape (parameters,)
        As `hpccomm.schedules.cost.rounds.coefficients` gives them.
    """
    schedule = _schedule(network, call, algorithm, tuning)
    seconds, counts = coefficients(schedule, network, call.dtype.itemsize)
    return network.overhead + seconds, counts


def _schedule(
    network: Network, call: Signature, algorithm: AnyAlgorithm, tuning: Tuning
) -> Schedule:
    """Return the schedule of all ranks."""
    if isinstance(algorithm, str):
        own = KNOWN[call.collective]
        if algorithm not in own:
            raise UsageError(
                f"algorithm is {algorithm!r}, which {call.collective} does not have; "
                f"give one of {', '.join(map(repr, own))}, or the function that builds its schedule"
            )
        name, chosen = algorithm, own[algorithm]
    else:
        chosen = algorithm if isinstance(algorithm, Algorithm) else Algorithm(algorithm)
        name = getattr(chosen.build, "__name__", repr(chosen.build))
    if chosen.shared and network.nodes > 1:
        raise UsageError(
            f"algorithm is {name!r}, which needs ranks that share memory, and {network.name} "
            f"has {network.ranks} ranks on {network.nodes} nodes; give at most "
            f"{network.ranks_per_node} ranks, or another algorithm"
        )
    return chosen.build(world(network.ranks), call, tuning)
