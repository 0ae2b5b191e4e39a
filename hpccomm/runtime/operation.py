"""Polled operations, and the names by which calls are counted and reported."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from hpccomm.contracts.terms import Terms, joined, with_peers
from hpccomm.contracts.transport import Steps
from hpccomm.errors import BufferMismatch


class Label(NamedTuple):
    """What a call is, for messages and records.

    Attributes
    ----------
    name : str
        Name of the call.
    nbytes : int
        Bytes of this rank's larger array.
    terms : Terms or None
        What must be equal on all ranks; of a message, who sends and receives.
    """

    name: str
    nbytes: int
    terms: Terms | None = None

    @property
    def fingerprint(self) -> int:
        """That of its terms; 0 without."""
        return 0 if self.terms is None else self.terms.fingerprint


DIGEST = 0x3FFFFFF
"""26 bits. Nine digests are still a small integer, which is the fastest."""


COMPARED = 0x3FF
"""Calls whose number ends in these bits have the digests compared: one of 1,024."""


def digested(digest: int, fingerprint: int) -> int:
    """Return the digest of a communicator's calls after one more.

    Different ones stay different, whatever follows. What issues calls has this expression in itself.
    """
    return (digest * 9 ^ fingerprint & DIGEST) & DIGEST


@dataclass(slots=True)
class Operation:
    """A polled operation that has not begun.

    Attributes
    ----------
    label : Label
        Name, bytes and terms.
    start : callable
        Returns its steps.
    keep : tuple
        What must live until it is done.
    ordered : bool
        Whether all ranks issue it in one order (collectives), so that it must wait for those before
        it. Point-to-point calls need not wait.
    """

    label: Label
    start: Callable[[], Steps]
    keep: tuple[object, ...] = ()
    ordered: bool = True


def as_one(operations: tuple[Operation, ...], async_op: bool = False) -> Operation:
    """Return operations as one, which carries them out together."""
    ordered = [each.label.terms for each in operations if each.ordered and each.label.terms]
    terms = joined(ordered, async_op) if ordered else _messages(operations)
    return Operation(
        Label("batch", sum(each.label.nbytes for each in operations), terms),
        lambda: together(operations),
        tuple(each.keep for each in operations),
        ordered=any(each.ordered for each in operations),
    )


def _messages(operations: tuple[Operation, ...]) -> Terms:
    """Return whom messages are for or from."""
    each = [operation.label.terms for operation in operations]
    peers = tuple(sorted({peer for terms in each if terms for peer in terms.peers}))
    ends = tuple({end: None for terms in each if terms for end in terms.ends})
    return replace(with_peers(peers), ends=ends)


def together(operations: tuple[Operation, ...]) -> Steps:
    """Run operations at the same time, but the ordered ones one after the other.

    Where a message has another size than its array, the others are completed before that is raised.
    """
    mismatch: list[BufferMismatch] = []
    ordered = [each.start for each in operations if each.ordered]
    under_way = [each.start() for each in operations if not each.ordered]
    if ordered:
        under_way.append(_in_turn(ordered))
    while under_way:
        left = []
        progress = False
        for steps in under_way:
            try:
                moved = next(steps, None)
            except BufferMismatch as error:
                moved = None
                if not mismatch:
                    mismatch.append(error)
            progress |= moved is not False
            if moved is not None:
                left.append(steps)
        under_way = left
        if under_way:
            yield progress
    if mismatch:
        raise mismatch.pop()  # this frame holds it no more


def _in_turn(starts: list[Callable[[], Steps]]) -> Steps:
    for start in starts:
        yield from start()
