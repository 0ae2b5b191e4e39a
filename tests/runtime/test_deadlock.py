"""Which ranks wait for each other in vain: the rule, on made-up ranks. Real ones are in `mpi.test_waits`."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.contracts.backend import ANSWERED, GONE, STOPPED, Answer
from hpccomm.contracts.signature import CallFingerprint, of_message, with_peers
from hpccomm.runtime.deadlock import behind, stuck_with
from hpccomm.runtime.recorder import Origin
from hpccomm.runtime.traffic import ANY_TAG, Traffic

UID = "made up"
CALLS = 7
"""All ranks have made so many collectives."""

Given = tuple[str, tuple[int, ...]]
"""What a rank does: ``""`` computes, else waits for these ranks: for ``"all"`` in a message, or ``"any"`` of them."""


def recv(src: int) -> CallFingerprint:
    return of_message("recv", 8, (None, src), 0, 0)


def recv_any(*_: int) -> CallFingerprint:
    return with_peers("recv", 8, (), (("src", None, ANY_TAG[0]),), ahead=1)


def rank_of(
    rank: int,
    size: int,
    labels: Sequence[CallFingerprint],
    collective: int = 0,
    sent: Sequence[int] = (),
    **more: Any,
) -> Answer:
    """Return what a rank answers that waits for calls, or for the next collective, and has sent so many messages."""
    traffic = Traffic()
    for peer in sent:
        traffic.cell(peer, 0)[0] += 1
    for label in labels:
        for _, peer, channel in label.ends if not label.ahead else ():
            traffic.cell(peer, channel)[1] += 1
    now = {"since": 1.0, "held": True, "patient": True, "occupies": True, "call": 3, "site": "a"}
    now |= {"operation": "recv", "any": len(labels) > 1}
    calls = [{**now, "collective": 0, "waits": traffic.waits(label), **more} for label in labels]
    if collective:
        calls.append({**now, "operation": "barrier", "collective": collective, **more})
    there = {"uid": UID, "communicator": "world", "rank": rank, "members": range(size)}
    there |= {"blocked": calls, "collective": collective or CALLS, "awaited": [], "holds": []}
    there |= {"traffic": [*traffic.everything().items()], "failed": "", "closed": ""}
    return Answer(ANSWERED, {"across": [there], "alone": more.get("alone", True)})


@given(st.data(), st.integers(2, 6))
def test_those_are_stuck_whom_no_rank_can_set_free(data: st.DataObject, size: int) -> None:
    """As a simulation has it, in which each rank that goes on does what the others wait for."""
    waits: dict[int, tuple[str, int]] = {}
    for rank in range(size):
        kind = data.draw(st.sampled_from(["", "recv", "any", "collective"]), label=f"rank {rank}")
        others = [each for each in range(size) if each != rank]
        waits[rank] = kind, data.draw(st.sampled_from(others), label="of") if kind == "recv" else 0
    known = {}
    for rank, (kind, peer) in waits.items():
        labels = {"recv": [recv(peer)], "any": [recv_any()]}.get(kind, [])
        known[rank] = rank_of(rank, size, labels, CALLS + 1 if kind == "collective" else 0)
    free = {rank for rank, (kind, _) in waits.items() if not kind}

    def goes_on(rank: int) -> bool:
        kind, peer = waits[rank]
        together = all(waits[each][0] == "collective" for each in {*waits} - free)
        return {"recv": peer in free, "any": bool(free - {rank}), "collective": together}[kind]

    while more := {rank for rank in {*waits} - free if goes_on(rank)}:
        free |= more
    for rank in range(size):
        stuck = set() if rank in free else {*range(size)} - free
        assert stuck_with(rank, UID, known).keys() == stuck


ROUND: dict[str, Callable[..., Answer]] = {
    "recv": lambda rank, **more: rank_of(rank, 3, [recv((rank + 1) % 3)], **more),
    "any": lambda rank, **more: rank_of(rank, 3, [recv_any()], **more),
    "several": lambda rank, **more: rank_of(
        rank, 3, [recv((rank + 1) % 3), recv((rank + 2) % 3)], **more
    ),
}
FREE: dict[str, dict[str, Any]] = {
    "its message is on its way": {"sent": [0, 1, 2]},
    "it has just begun": {"since": 0.01},
    "it polls": {"held": False, "patient": False},
    "it may be called by other threads": {"occupies": False, "alone": False},
}


@pytest.mark.parametrize("kind", ROUND)
@pytest.mark.parametrize("why", ["", *FREE, "it is stopped", "it is gone"])
def test_a_rank_that_may_go_on_breaks_a_round(kind: str, why: str) -> None:
    known = {rank: ROUND[kind](rank) for rank in (0, 1)}
    known[2] = ROUND[kind](2, **FREE.get(why, {}))
    if why.startswith("it is"):
        known[2] = Answer(STOPPED if "stopped" in why else GONE, {})
    # Who waits for any rank does not wait for one that is gone, and the others stay.
    stuck = {0, 1} if why else {0, 1, 2}
    stays = not why or (kind == "any" and "gone" in why)
    assert stuck_with(0, UID, known).keys() == (stuck if stays else set())


def test_a_rank_that_gave_up_is_no_part_of_a_round() -> None:
    """Who waits for any message of it has lost it, and waits for nobody else."""
    label = with_peers("recv", 8, (), (("src", 1, ANY_TAG[0]),), ahead=1)
    known = {0: rank_of(0, 2, [label]), 1: rank_of(1, 2, [])}
    known[1].facts["across"][0]["closed"] = "was aborted"
    assert stuck_with(0, UID, known) == {}


def test_the_end_of_a_chain_of_messages_is_found() -> None:
    known = {0: rank_of(0, 4, [recv(1)]), 1: rank_of(1, 4, [recv(2)]), 2: rank_of(2, 4, [recv(3)])}
    known[3] = rank_of(3, 4, [])
    origin = Origin(UID, "world", 0, 4)
    assert behind(origin, range(4), known, 1).keys() == {3}
    assert behind(origin, range(4), {**known, 3: Answer(GONE)}, 1)[3].state == GONE
    assert behind(origin, range(4), {**known, 3: rank_of(3, 4, [recv(0)])}, 1) == {}
    assert behind(origin, range(4), {**known, 3: rank_of(3, 4, [], sent=[2])}, 1) == {}
