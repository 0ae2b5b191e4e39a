"""What the links between nodes allow: the least time of a collective."""

import argparse
import math
import re
from collections.abc import Callable

from contest.cases import Case
from contest.race import Limit
from contest.results import Result
from hpccomm import Communicator

THROUGH_A_LINK: dict[str, Callable[[int, int], float]] = {
    "all_reduce": lambda nodes, _: 2 * (nodes - 1) / nodes,
    "reduce_scatter": lambda nodes, _: (nodes - 1) / nodes,
    "all_gather": lambda nodes, _: (nodes - 1) / nodes,
    "broadcast": lambda _, __: 1.0,
    "reduce": lambda _, __: 1.0,
    "all_to_all": lambda nodes, on_node: on_node * (nodes - 1) / nodes,
    "gather": lambda nodes, _: (nodes - 1) / nodes,
    "scatter": lambda nodes, _: (nodes - 1) / nodes,
    "send_recv": lambda _, __: 1.0,
    "scan": lambda _, __: 1.0,
}
"""Of each collective, the part of its bytes that must go through the busiest link in one direction:
``(nodes, ranks on each node)``. Sums are made inside a node before they are sent on; in an
all-to-all every rank has its own data for every other."""

_BITS = {"k": 1e3, "m": 1e6, "g": 1e9}


def rate(text: str) -> float:
    """Read the rate of a link, as ``tc`` spells it, in bytes a second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", text.strip().lower())
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no rate; give one such as 1gbit")
    return float(match[1]) * _BITS[match[2]] / 8


def limit(comm: Communicator, bytes_per_second: float) -> Limit:
    """Return the limit by a link of that rate for each node: the seconds for what must pass it. Collective."""
    on_node = max(comm.all_gather_object(comm.local_size))

    def least_seconds(case: Case, _: dict[str, Result]) -> float:
        known = THROUGH_A_LINK.get(case.collective)
        part = math.nan if known is None else known(comm.num_nodes, on_node)
        return part * case.nbytes / bytes_per_second

    return least_seconds
