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
    RecordedGroup,
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
    late_sender = of_each([(send, 0, 600, 650), (receive, 0, 100, 700)])
    assert waits(late_sender).wait.tolist() == [0, 500]
    assert lateness(late_sender).kept_waiting.tolist() == [500, 0]
    late_receiver = of_each([(send, 0, 100, 700), (receive, 0, 600, 700)])
    assert waits(late_receiver).wait.tolist() == [500, 0]
    buffered = of_each([(send, 0, 100, 120), (receive, 0, 600, 700)])
    assert waits(buffered).wait.tolist() == [0, 0]


def test_a_call_waits_until_its_end_if_the_clocks_say_that_it_ended_before_the_last_arrival():
    one = all_reduce(64)
    recording = of_each([(one, 1, 100, 790), (one, 1, 800, 900)])
    assert waits(recording).wait.tolist() == [0, 0]
    near = replace(recording, facts=replace(recording.facts, clock_error_ns=(5, 5)))
    assert waits(near).wait.tolist() == [690, 0]


def test_only_blocked_time_of_an_asynchronous_call_is_lateness():
    one = all_reduce(64, ASYNC)
    calls = [MadeCall(one, 1, 100, 900, asked=600, waited=300), MadeCall(one, 1, 700, 900)]
    recording = made([[each] for each in calls])
    assert waits(recording).wait.tolist() == [600, 0]
    assert lateness(recording).kept_waiting.tolist() == [0, 100]


def test_communicators_with_some_of_the_ranks_and_a_program_without_calls():
    world, some = all_reduce(64), replace(all_reduce(64), group=1)
    rows = [
        [MadeCall(world, 1, 0, 50), MadeCall(some, 1, 60, 100)],
        [MadeCall(world, 1, 40, 50)],
        [MadeCall(world, 1, 10, 50), MadeCall(some, 1, 90, 100)],
    ]
    recording = made(rows)
    groups = (*recording.groups, RecordedGroup("some", "some", (2, 0)))
    recording = replace(recording, groups=groups)
    assert waits(recording).wait.tolist() == [40, 30, 0, 30, 0]
    found = lateness(recording)
    assert (found.kept_waiting.tolist(), found.waited.tolist()) == ([0, 70, 30], [70, 0, 30])
    assert found.last.tolist() == [0, 1, 1]
    assert lateness(made([[], []])).kept_waiting.tolist() == [0, 0]


def test_messages_are_matched_in_their_order_by_tag_and_communicator():
    def sends(tag, at):
        return MadeCall(message("send", tag, dst=1), 0, at, at + 1)

    def receives(tag, at):
        return MadeCall(message("recv", tag, src=0), 0, at, at + 1)

    zero = [sends(1, 0), sends(2, 10), sends(1, 20), sends(3, 30)]
    zero.append(MadeCall(message("send_object", 1, dst=1), 0, 40, 41))
    one = [receives(2, 50), receives(1, 60), receives(1, 70), receives(1, 80)]
    found = messages(made([zero, one]))
    assert sorted(zip(found.sends.tolist(), found.receives.tolist(), strict=True)) == [
        (0, 6),
        (1, 5),
        (2, 7),
    ]


def test_both_ends_of_send_recv_and_messages_of_a_batch_are_matched():
    ring = [
        [MadeCall(message("send_recv", dst=(rank + 1) % 3, src=(rank - 1) % 3), 0, 10 * rank, 90)]
        for rank in range(3)
    ]
    found = messages(made(ring))
    assert sorted(zip(found.sends, found.receives, strict=True)) == [(0, 1), (1, 2), (2, 0)]
    assert waits(made(ring)).wait.tolist() == [20, 10, 0]
    both = [{"dst": 1, "src": None, "tag": 0}, {"dst": None, "src": 1, "tag": 0}]
    batch = CallSignature("batch", 0, 64, POLLED, {"operation": "batch", "calls": both})
    one = [MadeCall(message("recv", src=0), 0, 5, 20), MadeCall(message("send", dst=0), 0, 30, 40)]
    found = messages(made([[MadeCall(batch, 0, 0, 40)], one]))
    assert sorted(zip(found.sends, found.receives, strict=True)) == [(0, 1), (2, 0)]


def test_receives_from_any_rank_are_matched_only_where_one_sender_is_possible():
    anything = MadeCall(message("recv"), 0, 50, 60)
    zero = [MadeCall(message("send", dst=2), 0, 0, 1), MadeCall(message("send", dst=2), 0, 2, 3)]
    one = [MadeCall(message("send", dst=0), 0, 0, 1)]
    zero.append(MadeCall(message("recv", src=1), 0, 5, 6))
    two = [anything, MadeCall(message("recv", src=0), 0, 70, 80)]
    found = messages(made([zero, one, two]))
    assert sorted(zip(found.sends, found.receives, strict=True)) == [(0, 4), (1, 5), (3, 2)]
    one.append(MadeCall(message("send", dst=2), 0, 4, 5))
    found = messages(made([zero, one, two]))
    assert list(zip(found.sends, found.receives, strict=True)) == [(3, 2)]
