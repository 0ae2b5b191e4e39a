"""`hpccomm explain` on dumps with messages and one-sided calls of mpi4py, as the recorder writes them."""

from collections.abc import Sequence
from typing import Any

import pytest
from histories import explained

Call = tuple[str, dict[str, Any], bool]
"""The method, its terms, and whether it is over."""

NOW = 1_700_000_000.0
MODES = dict.fromkeys(("asynchronous", "awaited"), "asynchronous")


def document(rank: int, calls: Sequence[Call], *, before: int = 0, size: int = 3) -> dict[str, Any]:
    """Return the dump of a rank: a call in each second, after others that are not kept."""
    begun = NOW - len(calls)
    entries = [
        {
            "process_group": ["mpi all 0", "world"],
            "op_id": before + at + 1,
            "collective_seq_id": 0,
            "is_p2p": True,
            "profiling_name": f"mpi:{name.lower()}",
            "time_created_ns": int((begun + at) * 1e9),
            "duration_ms": 1.0 if over else None,
            "state": "completed" if over else "started",
            "frames": [{"name": "<module>", "filename": "program.py", "line": 10 * rank + at}],
            "terms": {"mpi": name, **terms, "mode": MODES.get(terms.get("mode", ""), "blocking")},
        }
        for at, (name, terms, over) in enumerate(calls)
    ]
    awaited = [at for at, (_, terms, _) in enumerate(calls) if terms.get("mode") == "awaited"]
    now = {
        "collective": 0,
        "doing": f"program.py line {90 + rank}",
        "awaited_since": {str(before + at + 1): begun + at for at in awaited},
    }
    return {
        "reason": "on demand",
        "time": NOW + 1.0,
        "rank": rank,
        "world_size": size,
        "host": "n0",
        "pg_config": {"mpi all 0": {"desc": "world", "ranks": [*range(size)]}},
        "entries": entries,
        "now": {"mpi all 0": now},
    }


def said(*calls: Sequence[Call], before: int = 0) -> list[str]:
    """Return the sentences about a job with these calls on its ranks."""
    documents = {
        rank: document(rank, each, before=before, size=len(calls))
        for rank, each in enumerate(calls)
    }
    return [fault.sentence for fault in explained(documents)[1]]


def sent(rank: int, tag: int, *, over: bool = True) -> Call:
    return "Send", {"dst": rank, "tag": tag}, over


def received(rank: int, tag: int | None, *, over: bool = True) -> Call:
    return "Recv", {"src": rank, "tag": tag}, over


ANY: Call = "Recv", {"tag": 7}, False


def test_a_message_that_is_under_way_is_waited_for_by_no_rank() -> None:
    assert said([sent(1, 7, over=False)], [received(0, 7, over=False)]) == []
    assert said([sent(1, 7, over=False)], [received(0, None, over=False)]) == []
    assert said([sent(1, 7)], [ANY]) == []
    (sentence,) = said([sent(1, 7)], [received(0, 7), ANY])
    assert "Rank 0 on node n0 is in program.py line 90, and has not taken part in" in sentence
    assert "All 1 such messages that were sent to rank 1 have been received" in sentence


def test_a_message_of_another_tag_is_named_also_where_older_calls_are_not_kept() -> None:
    for before in (0, 5000):
        (sentence,) = said(
            [sent(1, 7), sent(1, 7), sent(1, 8)],
            [received(0, 7), received(0, 7), received(0, 9, over=False)],
            before=before,
        )
        assert "Rank 0 has sent rank 1 a message with tag 8 (program.py line 2)" in sentence
        assert "tag 7" not in sentence


def test_a_probe_takes_no_message() -> None:
    probed = "Probe", {"src": 0, "tag": 7}, True
    assert said([sent(1, 7)], [probed, received(0, 7, over=False)]) == []


def test_an_asynchronous_call_that_the_program_does_not_wait_for_is_no_wait() -> None:
    begun = "Irecv", {"src": 0, "tag": 7, "mode": "asynchronous"}, False
    assert said([], [begun]) == []
    (sentence,) = said([], [("Irecv", {"src": 0, "tag": 7, "mode": "awaited"}, False)])
    assert "has not taken part in Irecv(source=0, tag=7) on 'world'" in sentence
    assert "(program.py line 10, awaited at program.py line 91)" in sentence


def test_a_send_beside_a_receive_that_is_awaited_may_be_done() -> None:
    both = [
        ("Isend", {"dst": 2, "tag": 1, "mode": "awaited"}, False),
        ("Irecv", {"src": 1, "tag": 1, "mode": "awaited"}, False),
    ]
    (sentence,) = said(both, [], [])
    assert sentence.startswith("Rank 1 on node n0")
    assert "Isend" not in sentence


@pytest.mark.parametrize(("name", "rank"), [("Lock", 2), ("Unlock", 1)])
def test_a_lock_is_waited_for_where_another_rank_holds_it(name: str, rank: int) -> None:
    mine: list[Call] = [("Lock", {"target": 1}, True)] * (name == "Unlock")
    theirs: list[Call] = [("Lock", {"target": 1}, True)] * (name == "Lock")
    (sentence,) = said([*mine, (name, {"target": 1}, False)], [], theirs)
    assert sentence.startswith(f"Rank {rank} on node n0")
    assert f"in {name}(rank=1) on 'world'" in sentence


@pytest.mark.parametrize("posts", [0, 1])
def test_an_origin_waits_for_targets_that_have_not_posted(posts: int) -> None:
    start: list[Call] = [("Start", {"peers": [1]}, True), ("Complete", {}, False)]
    found = said(start, [("Post", {"peers": [0]}, True)] * posts)
    assert len(found) == 1 - posts
    assert all("in Complete() on 'world'" in each for each in found)


def test_arrays_of_different_sizes_in_one_collective_are_named() -> None:
    documents = {
        rank: document(rank, [("Allreduce", {"op": "sum"}, False)], size=2) for rank in range(2)
    }
    for rank, each in documents.items():
        each["entries"][0] |= {"is_p2p": False, "collective_seq_id": 1, "nbytes": 8 << rank}
    (fault,) = explained(documents)[1]
    assert "arrays of different sizes: rank 0: 8 bytes; rank 1: 16 bytes" in fault.sentence
