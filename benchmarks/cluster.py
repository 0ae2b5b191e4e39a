r"""Several nodes: hpccomm beside the MPI library's own calls and Gloo, and what the link allows.

On a virtual cluster, as root, and on a real one::

    bash jobs/virtual_cluster.sh --nodes 3 --ranks-per-node 2 --link 1gbit -- \
        python benchmarks/cluster.py --link 1gbit
    srun -N 4 --ntasks-per-node 8 python benchmarks/cluster.py --link 100gbit --sizes 64M,1G

Contenders take turns, so that a change of the network's speed affects all of them, and their results are
checked. hpccomm takes part several times:

auto            what a user gets: plain arrays, the algorithm that hpccomm chooses
registered      auto on arrays of comm.empty
plan            auto, decided once
hierarchical    shared memory inside a node and messages between nodes, plain arrays
ring, ...       one of the other algorithms, plain arrays

The limit is the time that a node's link needs for the bytes that must pass it in one direction. All ranks
of a node share one link, which sends and receives at the same time.
"""

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from mpi4py import MPI

import hpccomm
from contest import command, contenders, links
from contest.contenders import GLOO

if TYPE_CHECKING:
    from contest.cases import Case
    from contest.results import Result


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_arguments(
        parser,
        collectives="all_reduce,reduce_scatter,all_gather,broadcast,reduce,all_to_all",
        names="gloo,auto,hierarchical",
        sizes="16M",
        rounds=7,
    )
    parser.add_argument(
        "--link", type=links.rate, required=True, metavar="RATE", help="of each node, such as 1gbit"
    )
    parser.add_argument(
        "--interface", default="eth0", metavar="NAME", help="network of Gloo (default eth0)"
    )
    request = parser.parse_args()
    bare = MPI.COMM_WORLD.Dup()
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        comm = stack.enter_context(hpccomm.new_comm())
        on_node = max(comm.all_gather_object(comm.local_size))
        entered = [contenders.library(bare)]
        for name in request.contenders:
            if name == GLOO:
                entered += command.gloo_where_it_is(stack, bare, request.interface, skipped)
            else:
                entered.append(contenders.ours(name, comm, stack))

        def limit(case: "Case", _results: "dict[str, Result]") -> float:
            return links.least_seconds(case, comm.num_nodes, on_node, request.link)

        what = f"that of a link of {request.link * 8 / 1e9:g} Gbit/s a node"
        return command.Contest(comm, bare, entered, limit, what, request, skipped).run()


if __name__ == "__main__":
    sys.exit(main())
