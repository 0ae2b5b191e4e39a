"""The model of a recorded program and its prediction: by hand, by a published example, and by equations."""

from dataclasses import replace

import numpy as np
import pytest
from programs_made import error, message, of, overlapped
from recordings_made import all_reduce, repeated

from hpccomm.results.recording import ASYNC
from hpccomm.tools.programs.model import (
    ACT,
    BLOCK,
    END,
    EVENT,
    START,
    WAIT,
    ProgramModel,
    predict,
)


def acting(*ranks, events, begins=None):
    """Return a program of acts (kind, event, compute, own) of each rank, and events (seconds, source, queue)."""
    acts = [(*act, *[0.0] * (4 - len(act)), 0.0, -1) for rank in ranks for act in rank]
    rows = [(each[0], 0, 0, *each[1:], *(-1, 0)[len(each) - 1 :], 0) for each in events]
    starts = np.cumsum([0, *map(len, ranks)])
    begins = np.zeros(len(ranks)) if begins is None else begins
    table = np.array([(*act, 0, 0) for act in acts], ACT)  # of no signature and buffer
    return ProgramModel(starts, table, np.array(rows, EVENT), begins, (), 1, 1.0)


def test_calls_of_one_queue_take_turns_and_those_of_two_share():
    rank = [(START, 0, 0.0), (START, 1, 1.0), (WAIT, 0, 0.0), (WAIT, 1, 0.0), (END, -1, 0.0)]
    turns = predict(acting(rank, rank, events=[(4.0,), (2.0,)]))
    assert turns.done.tolist() == [4.0, 6.0]
    shared = predict(acting(rank, rank, events=[(4.0,), (2.0, -1, 1)]))
    # From 1 to 5 both go on at half their speed; then the first one has a second left.
    assert shared.done.tolist() == [6.0, 5.0]


def test_loggopsims_example():
    """Its README: dissemination among 16 ranks ends after 22000 ns with the default parameters on every host.

    These are L = 2500 ns and o = 1500 ns, at the sender and at the receiver (simulator.ggo, dissemination_16.goal):
    https://github.com/spcl/LogGOPSim
    """
    latency, overhead, ranks = 2500e-9, 1500e-9, 16
    acts, events = [[] for _ in range(ranks)], []
    for distance in (1, 2, 4, 8):
        first = len(events)
        for rank in range(ranks):
            events.append((2 * overhead + latency, rank, -1))
            acts[rank].append((START, first + rank, 0.0, overhead))
        for rank in range(ranks):
            acts[rank].append((BLOCK, first + (rank - distance) % ranks, 0.0, overhead))
    found = predict(acting(*([*each, (END, -1, 0.0)] for each in acts), events=events))
    assert found.end[found.program.starts[1:] - 1] == pytest.approx(np.full(ranks, 22000e-9))


def test_asynchronous_calls_of_a_recording_take_turns():
    found = of(overlapped())
    assert found.events["seconds"][:3] == pytest.approx([30e-6, 19e-6, 3e-6])
    assert error(found) < 1e-9


@pytest.mark.parametrize("nbytes", [64, 1 << 20])
def test_messages_of_a_pipeline(nbytes):
    """Each rank receives from the one before, computes and sends to the next."""
    first = [(message("dst", 1, nbytes), 10, 11)]
    sent, received = message("dst", 2, nbytes), message("src", 1, nbytes)
    middle = [(message("src", 0, nbytes), 0, 14), (sent, 24, 25), (sent, 50, 51)]
    late = [(received, 40, 41), (received, 41, 54)]  # the first message is there before
    found = of(repeated(first, middle, late, mark=60))
    assert error(found) < 1e-9
    # What the middle one waits for, the sender itself a part of it where the message is large.
    assert found.events["seconds"][0] + found.acts["tail"].max() == pytest.approx(4e-6)
    # A sender that once did not wait waits for none, and the late receiver shows its own time.
    assert found.events["seconds"][1:3] == pytest.approx(4e-6)
    assert found.acts["kind"][found.rank() == 1][:3].tolist() == [BLOCK, START, START]
    assert found.acts["own"][found.rank() == 2][:2] == pytest.approx(1e-6)


def test_what_another_thread_calls_does_not_block_the_program():
    outer, inner = all_reduce(1 << 20), replace(all_reduce(64), group=1)
    calls = [(outer, 10, 60), (inner, 20, 30)]
    found = of(repeated(calls, calls, mark=90, groups=[(0, 1)]))
    assert error(found) < 1e-9
    # They shared the ranks' links for 10 us.
    assert sorted(set(np.round(found.events["seconds"] * 1e6).astype(int))) == [5, 45]


def test_a_blocking_call_overtakes_an_asynchronous_one_of_its_communicator():
    behind, short = all_reduce(1 << 20, ASYNC), all_reduce(64)
    calls = [(behind, 0, 60, 50, 10), (short, 20, 24)]
    program = of(repeated(calls, calls, mark=90))
    assert error(program) < 1e-9
    # Both had half of the link for 4 us.
    assert program.events["seconds"][:2] * 1e6 == pytest.approx([58, 2])


def solved(given):
    """Return the end of every act by iterating the equations until nothing changes: slow, and obviously right."""
    acts, events = given.acts, given.events
    begin, end = np.zeros(len(acts)), np.zeros(len(acts))
    done = np.zeros(len(events))
    rank = given.rank()
    calls = acts["kind"] <= BLOCK
    while True:
        before = end.copy()
        for event, each in enumerate(events):
            part = (acts["event"] == event) & calls
            if each["source"] >= 0:
                part &= rank == each["source"]
            start = begin[part].max()
            same = np.flatnonzero(events["queue"][:event] == each["queue"])
            if each["queue"] >= 0 and len(same):
                start = max(start, done[same[-1]])
            done[event] = start + each["seconds"]
        for at, act in enumerate(acts):
            last = given.begins[rank[at]] if at == given.starts[rank[at]] else end[at - 1]
            begin[at] = last + act["compute"]
            there = done[act["event"]] + act["tail"]
            end[at] = {
                END: begin[at],
                START: begin[at] + act["own"],
                BLOCK: max(there, begin[at] + act["own"]),
                WAIT: max(there, begin[at]) + act["own"],
            }[int(act["kind"])]
        if (before == end).all():
            return end


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_end_as_the_equations_say(seed):
    random = np.random.default_rng(seed)
    ranks = int(random.integers(1, 6))
    acts, events = [[] for _ in range(ranks)], []

    def act(rank, kind, event):
        acts[rank].append((kind, event, *random.random(2)))

    open_calls = []
    for number in range(int(random.integers(1, 30))):
        if random.random() < 0.4 and ranks > 1:
            source, target = random.permutation(ranks)[:2].tolist()
            events.append((random.random(), source, -1))
            act(source, START, number)
            act(target, BLOCK, number)
            continue
        events.append((random.random(),))
        kind = random.choice([BLOCK, START])
        for rank in range(ranks):
            act(rank, kind, number)
        if kind == START:
            open_calls.append(number)
        while open_calls and random.random() < 0.4:
            event = open_calls.pop(int(random.integers(len(open_calls))))
            for rank in range(ranks):
                act(rank, WAIT, event)
    given = acting(
        *([*each, (END, -1, 0.5)] for each in acts), events=events, begins=random.random(ranks)
    )
    given.acts["tail"] = random.random(len(given.acts)) * (given.acts["kind"] == BLOCK)
    assert predict(given).end == pytest.approx(solved(given))
    # A faster network is never slower.
    faster = given.events.copy()
    faster["seconds"] *= random.random(len(faster))
    assert predict(replace(given, events=faster)).seconds <= predict(given).seconds + 1e-12
