"""Matching, waiting and lateness, by known times.

The examples are those of Scalasca's documentation of its patterns ("Wait at N x N", "Late Broadcast", "Early Reduce",
"Late Sender", "Late Receiver"): https://apps.fz-juelich.de/scalasca/releases/scalasca/2.4/help/scalasca_patterns-2.4.html
"""

from dataclasses import replace

import numpy as np
import pytest
from recordings_made import MadeCall, all_reduce, made

from hpccomm.results.recording import (
    ASYNC,
    POLLED,
    CallSignature,
    lateness,
    messages,
    waits,
)


def rooted(operation):
    return CallSignature(operation, 0, 64, POLLED, {"operation": operation, "root": 0})


def message(operation, tag=0, **ends):
    values = {"dst": None, "src": None, "tag": tag} | ends if ends else {}
    return CallSignature(operation, 0, 64, POLLED, values)


def of_each(calls):
    """Return a recording of one call a rank, as tuples of signature, number, begin and end."""
    return made([[MadeCall(*call)] for call in calls])


def test_all_wait_for_the_last_of_n_ranks():
    one = all_reduce(64)
    recording = of_each([(one, 1, 100, 900), (one, 1, 300, 900), (one, 1, 800, 900)])
    waiting = waits(recording)
    assert waiting.wait.tolist() == [700, 500, 0]
    found = lateness(recording, waiting)
    assert found.kept_waiting.tolist() == [0, 0, 1200]
    assert found.waited.tolist() == [700, 500, 0]
    assert found.last.tolist() == [0, 0, 1]
    assert found.collectives.tolist() == [1, 1, 1]
    assert found.edges.shape == (61,)
    assert found.edges[[0, 15, 60]].tolist() == [100, 300, 900]
    # Rank 2 came 700 ns after the first, of 800 ns: in the 53rd of 60 parts.
    assert np.argwhere(found.map).tolist() == [[2, 52]]
    assert found.map[2, 52] == 1200
    table = str(found).splitlines()
    assert table[1].split() == ["2", "0.001", "ms", "1", "of", "1", "0.000", "ms"]


@pytest.mark.parametrize(
    ("operation", "begins", "expected"),
    [
        ("broadcast", (500, 100, 700), (0, 400, 0)),  # Late Broadcast
        ("scatter", (500, 100, 700), (0, 400, 0)),
        ("reduce", (500, 100, 700), (200, 0, 0)),  # Early Reduce: rank 1 ends before the root comes
        ("gather_v", (500, 100, 700), (200, 0, 0)),
    ],
)
def test_of_rooted_collectives_the_root_alone_is_awaited_or_waits(operation, begins, expected):
    ends = (900, 900 if operation in ("broadcast", "scatter") else 200, 900)
    each = [(rooted(operation), 1, *times) for times in zip(begins, ends, strict=True)]
    assert tuple(waits(of_each(each)).wait) == expected


def test_late_senders_and_late_receivers():
    send, receive = message("send", dst=1), message("recv", src=0)
    for sent, received, waiting, kept_waiting in (
        ((600, 650), (100, 700), [0, 500], [500, 0]),  # Late Sender
        ((100, 700), (600, 700), [500, 0], [0, 500]),  # Late Receiver
        ((100, 120), (600, 700), [0, 0], [0, 0]),  # buffered
    ):
        recording = of_each([(send, 0, *sent), (receive, 0, *received)])
        found = waits(recording)
        assert found.wait.tolist() == waiting
        # A call that waits for none is awaited by itself.
        assert found.awaited.tolist() == [1 if waiting[0] else 0, 0 if waiting[1] else 1]
        assert lateness(recording).kept_waiting.tolist() == kept_waiting


def test_a_call_waits_until_its_end_and_while_it_is_asked_for():
    one, asynchronous = all_reduce(64), all_reduce(64, ASYNC)
    # By the clocks it ended before the last arrival: by more than their error, or by less.
    recording = of_each([(one, 1, 100, 790), (one, 1, 800, 900)])
    assert waits(recording).wait.tolist() == [0, 0]
    near = replace(recording, facts=replace(recording.facts, clock_error_ns=(5, 5)))
    assert waits(near).wait.tolist() == [690, 0]
    # Of an asynchronous call only blocked time is lateness.
    recording = of_each([(asynchronous, 1, 100, 900, 600, 300), (asynchronous, 1, 700, 900)])
    assert waits(recording).wait.tolist() == [600, 0]
    assert lateness(recording).kept_waiting.tolist() == [0, 100]


def test_communicators_with_some_of_the_ranks_and_a_program_without_calls():
    world, some = all_reduce(64), replace(all_reduce(64), group=1)
    rows = [
        [MadeCall(world, 1, 0, 50), MadeCall(some, 1, 60, 100)],
        [MadeCall(world, 1, 40, 50)],
        [MadeCall(world, 1, 10, 50), MadeCall(some, 1, 90, 100)],
    ]
    recording = made(rows, groups=[(2, 0)])
    assert waits(recording).wait.tolist() == [40, 30, 0, 30, 0]
    found = lateness(recording)
    assert (found.kept_waiting.tolist(), found.waited.tolist()) == ([0, 70, 30], [70, 0, 30])
    assert found.last.tolist() == [0, 1, 1]
    assert lateness(made([[], []])).kept_waiting.tolist() == [0, 0]


def pairs(rows):
    """Return the numbers of the calls of each matched message."""
    found = messages(made(rows))
    return sorted(zip(found.sends.tolist(), found.receives.tolist(), strict=True))


def sends(dst, at, tag=0):
    return MadeCall(message("send", tag, dst=dst), 0, at, at + 1)


def receives(src, at, tag=0):
    return MadeCall(message("recv", tag, src=src), 0, at, at + 1)


def test_messages_are_matched_in_their_order_by_tag_and_communicator():
    zero = [sends(1, at, tag) for at, tag in ((0, 1), (10, 2), (20, 1), (30, 3))]
    zero.append(MadeCall(message("send_object", 1, dst=1), 0, 40, 41))
    one = [receives(0, at, tag) for at, tag in ((50, 2), (60, 1), (70, 1), (80, 1))]
    assert pairs([zero, one]) == [(0, 6), (1, 5), (2, 7)]


def test_both_ends_of_send_recv_and_messages_of_a_batch_are_matched():
    ring = [
        [MadeCall(message("send_recv", dst=(rank + 1) % 3, src=(rank - 1) % 3), 0, 10 * rank, 90)]
        for rank in range(3)
    ]
    assert pairs(ring) == [(0, 1), (1, 2), (2, 0)]
    assert waits(made(ring)).wait.tolist() == [20, 10, 0]
    both = [{"dst": 1, "src": None, "tag": 0}, {"dst": None, "src": 1, "tag": 0}]
    batch = CallSignature("batch", 0, 64, POLLED, {"operation": "batch", "calls": both})
    one = [receives(0, 5), sends(0, 30)]
    assert pairs([[MadeCall(batch, 0, 0, 40)], one]) == [(0, 1), (2, 0)]


def test_receives_from_any_rank_are_matched_only_where_one_sender_is_possible():
    zero, one = [sends(2, 0), sends(2, 2), receives(1, 5)], [sends(0, 0)]
    two = [MadeCall(message("recv"), 0, 50, 60), receives(0, 70)]
    assert pairs([zero, one, two]) == [(0, 4), (1, 5), (3, 2)]
    one.append(sends(2, 4))
    assert pairs([zero, one, two]) == [(3, 2)]
