"""A schedule as lines of text, for `hpccomm plot --schedule --text`."""

from collections.abc import Iterator

import numpy as np

from hpccomm.contracts.collectives import ring
from hpccomm.schedules.schedule import Column
from hpccomm.tools.drawing.trace import Data, DrawnStep, Subject
from hpccomm.units import ranges

SIGNS = {"copy": "copies", "fold": "folds", "final": "completes"}


def lines(subject: Subject) -> Iterator[str]:
    """Yield a line for each round: ``round 3: 0→1 [4:8] of 0-2; folds: 1``.

    A message is shown as sender→receiver, the slice of the array that it moves, and the ranks whose
    contributions are folded in it. ``0⇢1`` is not a message: one of the two ranks accesses the other's
    memory. Copies, folds, and folds that complete a result name the ranks that do them.
    """
    yield subject.title
    yield subject.summary
    several = len(subject.channels) > 1
    for channel, steps in enumerate(subject.channels):
        for step in steps:
            where = f"channel {channel} round {step.number}" if several else f"round {step.number}"
            yield f"{where}: {'; '.join(_said(step, subject))}"


def _said(step: DrawnStep, subject: Subject) -> Iterator[str]:
    moves = []
    for move in step.moves:
        arrow = "→" if move.how == "message" else "⇢"
        what = slices(move.data, subject)
        whose = contributed(move.data)
        moves.append(
            f"{move.source}{arrow}{move.target}"
            + (f" {what}" if what else "")
            + (f" of {whose}" if whose else "")
        )
    if moves:
        yield ", ".join(moves)
    for kind, verb in SIGNS.items():
        ranks = [mark.rank for mark in step.marks if mark.what == kind]
        if ranks:
            yield f"{verb}: {ranges(ranks)}"
    for group in step.meeting:
        yield f"barrier: {ranges(group)}"


def slices(data: Data, subject: Subject) -> str:
    """Return the slices of the array, such as ``[4:8]``; or sender and receiver of blocks."""
    if subject.call.description.individual:
        return " ".join(f"[{source}→{target}]" for source, target in routes(data, subject))
    return " ".join(f"[{first}:{last}]" for first, last in runs(data.elements))


def routes(data: Data, subject: Subject) -> list[tuple[int, int]]:
    """Return sender and receiver of each block that ranks exchange, in the order of the data."""
    call, size = subject.call, subject.size
    total = call.elements
    block = total // len(call.counts)
    blocks = dict.fromkeys(
        (element // total, element % total // block) for element in data.elements.tolist()
    )
    if call.description.peers:
        return [(sender, ring(sender, size)[number]) for sender, number in blocks]
    return list(blocks)


def contributed(data: Data) -> str:
    """Return the ranks whose contributions are folded in each element.

    The text is empty if it is only one rank, or if the elements differ.
    """
    if not len(data.contributions) or (data.contributions != data.contributions[0]).any():
        return ""
    ranks = members(data.contributions[0])
    return ranges(ranks) if len(ranks) > 1 else ""


def members(contributions: np.uint64) -> list[int]:
    """Return the ranks whose bit is set."""
    bits = int(contributions)
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


def runs(elements: Column) -> list[tuple[int, int]]:
    """Cut elements into runs of neighbors: first and one past the last of each."""
    if not len(elements):
        return []
    cuts = np.flatnonzero(np.diff(elements) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(elements, cuts)]
