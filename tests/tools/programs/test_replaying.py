"""What the ranks of a replay do, on recordings with known times."""

from collections import Counter
from dataclasses import replace

import numpy as np
from recordings_made import MARK, MICRO, MadeCall, all_reduce, made

from hpccomm.results.recording import ASYNC, RecordedGroup, Recording, collectives
from hpccomm.tools.programs.program import BESIDE, BLOCK, START, WAIT
from hpccomm.tools.programs.replay import score
from hpccomm.tools.programs.steps import steps

OTHER = replace(all_reduce(4096), group=1)
LATER = all_reduce(1024, ASYNC)


def program(steps: int = 3) -> Recording:
    """Return 2 ranks that compute 50 us, while another thread reduces, and then wait for a call begun before."""
    ranks = []
    for rank in range(2):
        calls = []
        for step in range(steps):
            at = (step * 100 + rank) * MICRO
            calls += [
                MadeCall(LATER, 2 * step + 1, at, at + 30 * MICRO, at + 60 * MICRO, 0),
                MadeCall(all_reduce(64), 2 * step + 2, at + 10 * MICRO, at + 25 * MICRO),
                MadeCall(OTHER, step + 1, at + 20 * MICRO, at + 40 * MICRO),
                MadeCall(MARK, 0, at + 90 * MICRO, at + 90 * MICRO),
            ]
        ranks.append(calls)
    whole = made(ranks)
    return replace(whole, groups=(*whole.groups, RecordedGroup("other", "other", (0, 1))))


def played(recording: Recording) -> tuple[list[tuple[int, str, int]], Counter[str]]:
    parts = steps(recording, collectives(recording))
    whole, left_out = score(recording, parts, 0, len(parts), recording.ranks)
    own = whole.acts[(whole.acts["rank"] == 0) & (whole.acts["step"] == 0)]
    names = {256: "small", 64: "small", 1024: "later", 4096: "other"}
    sizes = [names[recording.signatures[each].nbytes] for each in own["signature"][:-1]]
    gaps = np.round(own["compute"][:-1] * 1e6).astype(int).tolist()
    return list(zip(gaps, sizes, own["kind"][:-1].tolist(), strict=True)), left_out


def test_gaps_are_what_no_call_blocks_and_threads_go_beside() -> None:
    events, left_out = played(program())
    assert not left_out
    begun = [(10, "later", START), (10, "other", BESIDE), (0, "small", BLOCK)]
    assert events == [*begun, (35, "later", WAIT)]


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
    ranks = [
        [MadeCall(MARK, 0, 0, 0), MadeCall(each, 1, 10, 20), MadeCall(MARK, 0, 50, 50)]
        for each in batches
    ]
    assert played(made(ranks))[1] == {"batch: not of these steps on all of its ranks": 2}
