"""Polled operations, and the digest of the calls of a communicator.

The engine and the lanes start operations; records and messages show their labels.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hpccomm.contracts.fingerprint import CallFingerprint, joined, with_peers
from hpccomm.contracts.transport import Steps
from hpccomm.runtime.waiting import at_once

FINALIZE = "finalize"
"""The call that ends a communicator."""

DIGEST = 0x3FFFFFF
"""26 bits. Nine digests are still a small integer, which is the fastest."""


COMPARED = 0x3FF
"""Calls whose number ends in these bits have the digests compared: one of 1,024."""


def digested(digest: int, fingerprint: int) -> int:
    """Return the digest of a communicator's calls after one more.

    Different ones stay different after any further calls. The calls of `callpath` contain
    this expression.
    """
    return (digest * 9 ^ fingerprint & DIGEST) & DIGEST


@dataclass(slots=True)
class Operation:
    """A polled operation that has not begun.

    Attributes
    ----------
    label : CallFingerprint
        The call.
    start : callable
        Returns its steps.
    keep : tuple
        Objects that must live until it is done.
    ordered : bool
        Whether all ranks issue it in one order (collectives), so that it must wait for earlier
        ones. Point-to-point calls need not wait.
    """

    label: CallFingerprint
    start: Callable[[], Steps]
    keep: tuple[object, ...] = ()
    ordered: bool = True


def as_one(operations: tuple[Operation, ...], async_op: bool = False) -> Operation:
    """Return operations as one, which carries them out together."""
    ordered = [each.label for each in operations if each.ordered and each.label.values]
    nbytes = sum(each.label.nbytes for each in operations)
    return Operation(
        joined(nbytes, ordered, async_op) if ordered else _messages(nbytes, operations),
        lambda: together(operations),
        tuple(each.keep for each in operations),
        ordered=any(each.ordered for each in operations),
    )


def _messages(nbytes: int, operations: tuple[Operation, ...]) -> CallFingerprint:
    """Return the label of messages: whom they are for or from."""
    each = [operation.label for operation in operations]
    peers = tuple(sorted({peer for label in each for peer in label.peers}))
    ends = tuple({end: None for label in each for end in label.ends})
    calls = [{"operation": one.name, **one.values, "nbytes": one.nbytes} for one in each]
    return with_peers("batch", nbytes, peers)._replace(ends=ends, values={"calls": calls})


def together(operations: tuple[Operation, ...]) -> Steps:
    """Run operations at the same time, but the ordered ones one after the other."""
    ordered = [each.start for each in operations if each.ordered]
    under_way = [each.start() for each in operations if not each.ordered]
    return at_once([*under_way, _in_turn(ordered)] if ordered else under_way)


def _in_turn(starts: list[Callable[[], Steps]]) -> Steps:
    for start in starts:
        yield from start()
