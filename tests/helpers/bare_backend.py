"""A third backend with the required abilities only: threads as ranks, by messages alone."""

from collections.abc import Mapping, Sequence

from hpccomm.backends import refuse_hints, seat
from hpccomm.backends.loopback import Context, LoopbackBackend, World, make_world
from hpccomm.errors import UsageError


class BareBackend(LoopbackBackend):
    """No window, no memory that ranks share, no messages from any sender, no side channel."""

    name = "bare"

    def __init__(self, world: World, context: Context, members: Sequence[int], rank: int) -> None:
        super().__init__(world, context, members, rank)
        self.collectives.shared = self.messages.shared = None
        self.side = None
        del self.arrivals

    def group(self, ranks: Sequence[int], label: int) -> "BareBackend":
        members = [self.members[rank] for rank in ranks]
        context = (*self._context, label, tuple(members))
        return BareBackend(self.world, context, members, list(ranks).index(self.rank))

    def window(self) -> None:
        return None


def open_backend(mpi_comm: object, hints: Mapping[str, str]) -> BareBackend:
    """Open the backend, as an entry point names it."""
    world = seat.world
    if world is None or mpi_comm is not None:
        raise UsageError("backend 'bare' takes no mpi_comm: its ranks are threads")
    refuse_hints("bare", hints)
    seat.opened += 1
    return BareBackend(world, ("bare", seat.opened), range(world.topology.size), seat.rank)


def open_wrong(mpi_comm: object, hints: Mapping[str, str]) -> BareBackend:
    """Open one with a fault: each rank has a name of its own for the communicator."""
    made = open_backend(mpi_comm, hints)
    made.uid += str(made.rank)
    return made


def open_alone(_mpi_comm: object, _hints: Mapping[str, str]) -> BareBackend:
    """Open one on the ranks of a job, which is one process without a launcher, as over mpi4py."""
    return BareBackend(make_world(1), ("alone",), range(1), 0)
