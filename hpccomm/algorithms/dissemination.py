"""Dissemination barrier (D. Hensgen, R. Finkel, U. Manber, 1988)."""

from hpccomm.contracts.schedule import RECV, SEND, Round, Schedule, Slice, Transfer
from hpccomm.contracts.signature import Signature


def barrier(rank: int, size: int, _call: Signature) -> Schedule:
    """In round k each rank tells the one 2^k further on: after ⌈log2 n⌉ rounds all know of all."""
    rounds: list[Round] = []
    distance = 1
    while distance < size:
        rounds.append(
            Round(
                receives=(Transfer((rank - distance) % size, Slice(RECV, 0, 0)),),
                sends=(Transfer((rank + distance) % size, Slice(SEND, 0, 0)),),
            )
        )
        distance *= 2
    return Schedule(tuple(rounds))
