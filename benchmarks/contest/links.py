"""What the links between nodes allow: the least time of a collective."""

import argparse
import math
import re

from contest.race import Limit
from hpccomm import Communicator

WHOLE = ("broadcast", "reduce", "send_recv", "scan")
"""All of their bytes must go through the busiest link, in one direction."""
OF_OTHERS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "gather": 1, "scatter": 1}
"""Of N nodes, so many times the part (N - 1) / N of their bytes. Sums are made inside a node before they are sent on."""


def part(collective: str, nodes: int, on_node: int) -> float:
    """Return the part of a collective's bytes that must go through the busiest link; not a number if it is not known."""
    if collective in WHOLE:
        return 1.0
    # In an all-to-all every rank of a node has its own data for every other.
    times = on_node if collective == "all_to_all" else OF_OTHERS.get(collective, math.nan)
    return times * (nodes - 1) / nodes


def rate(text: str) -> float:
    """Read the rate of a link, as ``tc`` spells it, in bytes a second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", text.strip().lower())
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no rate; give one such as 1gbit")
    return float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[match[2]] / 8


def limit(comm: Communicator, bytes_per_second: float) -> Limit:
    """Return the limit by a link of that rate for each node: the seconds for what must pass it. Collective."""
    nodes, on_node = comm.num_nodes, max(comm.all_gather_object(comm.local_size))
    return lambda case, _: part(case.collective, nodes, on_node) * case.nbytes / bytes_per_second
