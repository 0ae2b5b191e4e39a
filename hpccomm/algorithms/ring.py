"""Ring: each rank passes on to its right neighbour what came from its left one."""

from hpccomm.algorithms.partition import slices
from hpccomm.contracts.schedule import RECV, SEND, Copy, Round, Schedule, Slice, Transfer
from hpccomm.contracts.signature import Signature


def all_gather(rank: int, size: int, call: Signature) -> Schedule:
    """Pass blocks round the ring: n-1 rounds, (n-1)/n of the result sent by each rank."""
    blocks = slices(RECV, call.counts)
    rounds = [Round(local=(Copy(Slice(SEND, 0, call.counts[rank]), blocks[rank]),))]
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        out, into = blocks[(rank - step) % size], blocks[(rank - step - 1) % size]
        rounds.append(
            Round(
                receives=(Transfer(left, into),) if into.count else (),
                sends=(Transfer(right, out),) if out.count else (),
            )
        )
    return Schedule(tuple(rounds))
