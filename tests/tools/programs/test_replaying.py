"""What the ranks of a replay do, on recordings with known times."""

from collections import Counter
from dataclasses import replace

import numpy as np
from recordings_made import all_reduce, repeated

from hpccomm.results.recording import ASYNC, Recording, collectives
from hpccomm.tools.programs.model import BESIDE, BLOCK, END, START, WAIT
from hpccomm.tools.programs.replay import score
from hpccomm.tools.programs.steps import steps

OTHER = replace(all_reduce(4096), group=1)
LATER = all_reduce(1024, ASYNC)


def program() -> Recording:
    """Return 2 ranks that compute 50 us, while another thread reduces, and then wait for a call begun before."""
    calls = [(LATER, 0, 30, 60, 0), (all_reduce(64), 10, 25), (OTHER, 20, 40)]
    return repeated(calls, calls, steps=3, mark=90, groups=[(0, 1)])


def played(recording: Recording) -> tuple[list[tuple[int, str, int]], Counter[str]]:
    parts = steps(recording, collectives(recording))
    whole, left_out = score(recording, parts, 0, len(parts), recording.ranks)
    own = whole.of_rank(0).acts
    own = own[: np.argmax(own["kind"] == END) + 1]
    names = {256: "small", 64: "small", 1024: "later", 4096: "other"}
    sizes = [names[recording.signatures[each].nbytes] for each in own["signature"][:-1]]
    gaps = np.round(own["compute"][:-1] * 1e6).astype(int).tolist()
    return list(zip(gaps, sizes, own["kind"][:-1].tolist(), strict=True)), left_out


def test_gaps_are_what_no_call_blocks_and_threads_go_beside() -> None:
    events, left_out = played(program())
    assert not left_out
    begun = [(10, "later", START), (10, "other", BESIDE), (0, "small", BLOCK)]
    assert events == [*begun, (35, "later", WAIT)]


def test_fewer_ranks_have_their_own_acts_alone() -> None:
    recording = program()
    parts = steps(recording, collectives(recording))
    fewer = score(recording, parts, 0, len(parts), 1)[0]
    every = score(recording, parts, 0, len(parts), 2)[0]
    assert fewer.acts.tolist() == every.of_rank(0).acts.tolist()


def test_a_collective_that_a_rank_lacks_is_left_out() -> None:
    recording = program()
    recording.calls["failed"][6] = 1  # the second step's other one, of rank 0
    _, left_out = played(recording)
    assert left_out == {"all_reduce: not of these steps on all of its ranks": 2}


def test_a_batch_that_lacks_a_message_is_left_out_on_all_ranks() -> None:
    reduced = all_reduce(8)
    sent = {"operation": "send", "dst": 1, "tag": 0}
    calls = [[reduced.values, sent], [reduced.values]]  # rank 1 has not recorded its receive
    batches = [replace(reduced, operation="batch", values={"calls": each}) for each in calls]
    recording = repeated(*([(each, 10, 20)] for each in batches), steps=2, mark=50)
    assert played(recording)[1] == {"batch: not of these steps on all of its ranks": 2}
