"""All-gather round a ring in both directions: half of a ring's rounds, and as many elements."""

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.partition import Listed
from hpccomm.schedules.schedule import (
    RECV,
    SEND,
    Group,
    Place,
    Round,
    Rounds,
    Schedule,
    Tuning,
    copies,
    transfers,
)


def all_gather(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Hand each block on to both neighbors, until all ranks have it from one side or the other."""
    n, at, rank = group.size, group.at, group.rank
    blocks = Listed(call.counts)

    def rounds() -> Rounds:
        own, count = blocks.at(at)
        yield Round(local=(copies(rank, Place(SEND, 0), Place(RECV, own), count),))
        for step in range(n // 2):
            # Of an even number of ranks the opposite one is as far on either side: it sends once.
            ways = (1,) if 2 * (step + 1) == n else (1, -1)
            receives, sends = [], []
            for way in ways:
                start, count = blocks.at((at - way * step) % n)
                sends.append(transfers(rank, group.peer((at + way) % n), RECV, start, count))
                start, count = blocks.at((at - way * (step + 1)) % n)
                receives.append(transfers(rank, group.peer((at - way) % n), RECV, start, count))
            yield Round(tuple(receives), tuple(sends))

    return Schedule((rounds,))
