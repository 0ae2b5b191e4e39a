"""Receives that wait in vain: for a message of another size, or of another call, than came."""

from collections.abc import Sequence

from hpccomm.contracts.transport import Request, Transport

PATIENT_POLLS = 1000
"""So often a receive is polled before a look at what came instead."""

Suspects = frozenset[int]
"""Identities of requests."""

NONE: Suspects = frozenset()


def suspected(
    transport: Transport,
    suspects: Suspects,
    expected: Sequence[tuple[int, int]],
    requests: Sequence[Request],
    left: Sequence[Request],
    tag: int,
) -> Suspects:
    """Return which receives seem to wait in vain; raise if one of them did so before.

    What is seen may be the next round's message, come with the one that is awaited: then that
    receive is complete at its next poll.

    Parameters
    ----------
    transport : Transport
        Looks at what came.
    suspects : frozenset of int
        Those of the look before.
    expected : sequence of (int, int)
        The sender and the bytes of each receive.
    requests : sequence of Request
        The receives first, in that order.
    left : sequence of Request
        Those that are not complete.
    tag : int
        The call's.

    Raises
    ------
    BufferMismatch
        If what came does not fit.
    """
    waiting = {id(request) for request in left}
    seen: dict[int, int] = {}
    for (peer, nbytes), request in zip(expected, requests, strict=False):
        if id(request) in waiting and peer not in seen:
            again = id(request) in suspects
            seen[peer] = id(request) if transport.look(peer, tag, nbytes, take=again) else 0
    return frozenset(seen.values())
