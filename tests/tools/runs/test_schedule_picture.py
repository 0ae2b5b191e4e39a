"""The picture of a schedule shows its messages and folds."""

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from proofs import SLICING

from hpccomm.contracts.collectives import BLOCKWISE
from hpccomm.errors import ConfigurationError, UsageError
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm, Build
from hpccomm.schedules.algorithms.partition import merged
from hpccomm.schedules.proof import signatures
from hpccomm.schedules.schedule import (
    RECV,
    SEND,
    Place,
    Round,
    Schedule,
    Tuning,
    copies,
    transfers,
    whole,
    world,
)
from hpccomm.tools.drawing import check_place, rendered, save
from hpccomm.tools.runs.schedule import contributed, draw, lines, members, runs
from hpccomm.tools.runs.trace import Subject, subject

SVG = "{http://www.w3.org/2000/svg}"

EVERY = [
    pytest.param(collective, name, id=f"{name}-{collective}")
    for collective, named in ALGORITHMS.items()
    for name in named
]


def example(collective: str, name: str, ranks: int = 5) -> Subject:
    """A call with several segments, on two nodes where they may be several."""
    shared = ALGORITHMS[collective][name].shared
    # Of the whole array, or of each rank's part.
    parts = 4 * ranks if collective in BLOCKWISE or name in SLICING else 8
    return subject(
        name,
        collective,
        ranks=ranks,
        count=None if collective == "barrier" else parts,
        segment=2,
        channels=2,
        nodes=1 if shared else 2,
    )


def scheduled(shown: Subject, build: Build, tuning: Tuning) -> Schedule:
    """The schedule of all ranks, whose calls may differ."""
    if not shown.call.individual:
        return build(world(shown.size), shown.call, tuning)
    count, dtype = shown.call.counts[0], shown.call.dtype
    calls = signatures(shown.collective, shown.size, count, dtype=dtype)
    alone = [world(shown.size, np.array([rank])) for rank in range(shown.size)]
    return merged([build(group, call, tuning) for group, call in zip(alone, calls, strict=True)])


def said(shown: Subject, segment: int, channels: int) -> Counter[tuple[str, int, int, int, int]]:
    """What the schedule's tables say: how, channel, round, from whom, to whom."""
    build = ALGORITHMS[shown.collective][shown.algorithm].build
    schedule = scheduled(shown, build, Tuning(segment, channels, shown.topology))
    found: Counter[tuple[str, int, int, int, int]] = Counter()
    for channel, make in enumerate(schedule.channels):
        for number, each in enumerate(make()):
            for table in each.sends:
                pairs = zip(table.rank.tolist(), table.peer.tolist(), strict=True)
                found.update(("message", channel, number, *pair) for pair in pairs)
            for step in each.local:
                ranks = step.rank.tolist()
                sources = getattr(step, "sources", None) or (step.source,)
                for place in sources:
                    if place.peer is not None:
                        pairs = zip(place.peer.tolist(), ranks, strict=True)
                        found.update(("read", channel, number, a, b) for a, b in pairs if a != b)
                if step.target.peer is not None:
                    pairs = zip(ranks, step.target.peer.tolist(), strict=True)
                    found.update(("write", channel, number, a, b) for a, b in pairs if a != b)
    return found


@pytest.mark.values
@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_each_message_has_its_arrow(collective: str, name: str) -> None:
    shown = example(collective, name)
    svg = draw(shown)
    columns = rank_columns(svg, len(shown.channels))
    drawn: Counter[tuple[str, int, int, int, int]] = Counter()
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        how, *numbers = group.get("id", "").split("-")
        if how not in ("message", "read", "write"):
            continue
        channel, number, source, target, _ = map(int, numbers)
        drawn[how, channel, number, source, target] += 1
        # A shaft, and a head that begins with its tip.
        shaft, head = (each.get("d", "").split() for each in group.iter(f"{SVG}path"))
        assert nearest(columns[channel], float(shaft[1])) == source
        assert nearest(columns[channel], float(head[1])) == target
        assert float(head[2]) > float(shaft[2])  # downwards, as time goes
    assert drawn == said(shown, 2, 2)


def rank_columns(svg: str, channels: int) -> list[list[float]]:
    """Where each rank's line is, for each channel; by the numbers above the lines."""
    texts = ET.fromstring(svg).iter(f"{SVG}text")
    numbers = [each for each in texts if each.get("fill") == "white" and each.get("y") == top(svg)]
    size = len(numbers) // channels
    found = []
    for channel in range(channels):
        own = numbers[channel * size : (channel + 1) * size]
        assert [each.text for each in own] == [str(rank) for rank in range(size)]
        found.append([float(each.get("x", "")) for each in own])
    return found


def top(svg: str) -> str | None:
    """The height of the highest white text."""
    texts = ET.fromstring(svg).iter(f"{SVG}text")
    return min((each.get("y", "") for each in texts if each.get("fill") == "white"), key=float)


def nearest(columns: list[float], x: float) -> int:
    return min(range(len(columns)), key=lambda rank: abs(columns[rank] - x))


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(16, marks=pytest.mark.thorough)])
def test_any_number_of_ranks_is_drawn(ranks: int) -> None:
    assert rendered(draw(subject("ring", ranks=ranks)), "png").startswith(b"\x89PNG")


@pytest.mark.values
@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_nothing_to_move_is_drawn(collective: str, name: str) -> None:
    count = None if collective == "barrier" else 0
    assert "</svg>" in draw(subject(name, collective, ranks=3, count=count))


def test_the_same_schedule_gives_the_same_bytes() -> None:
    first, second = (draw(subject("ring", ranks=4)) for _ in range(2))
    assert first == second


def test_the_ring_moves_what_it_is_known_to_move() -> None:
    size = 8
    (steps,) = subject("ring", "all_reduce", ranks=size).channels
    assert len(steps) == 2 * (size - 1)
    for number, step in enumerate(steps):
        assert [(move.source, move.target) for move in step.moves] == [
            (rank, (rank + 1) % size) for rank in range(size)
        ]
        for move in step.moves:
            (block,) = move.data.elements.tolist()
            ranks = members(move.data.contributions[0])
            if number < size - 1:
                assert block == (move.source - number - 1) % size
                assert ranks == sorted((move.source - back) % size for back in range(number + 1))
            else:
                assert block == (move.source - (number - size + 1)) % size
                assert len(ranks) == size
        what = {mark.what for mark in step.marks}
        assert what == (
            {"fold"} if number < size - 2 else {"final"} if number == size - 2 else set()
        )


def test_text_has_a_line_a_round() -> None:
    assert list(lines(subject("ring", ranks=3, count=6))) == [
        "ring all_reduce: 3 ranks, 6 elements",
        "4 rounds, 12 messages, a rank sends at most 8 elements",
        "round 0: 0→1 [4:6], 1→2 [0:2], 2→0 [2:4]; folds: 0-2",
        "round 1: 0→1 [2:4] of 0,2, 1→2 [4:6] of 0-1, 2→0 [0:2] of 1-2; completes: 0-2",
        "round 2: 0→1 [0:2] of 0-2, 1→2 [2:4] of 0-2, 2→0 [4:6] of 0-2",
        "round 3: 0→1 [4:6] of 0-2, 1→2 [0:2] of 0-2, 2→0 [2:4] of 0-2",
    ]
    two_channels = list(lines(subject("ring", ranks=2, count=8, segment=2, channels=2)))
    assert two_channels[2] == "channel 0 round 0: 0→1 [2:4], 1→0 [0:2]; completes: 0-1"
    assert two_channels[4].startswith("channel 1 round 0: 0→1 [6:8]")


def test_text_of_blocks_names_sender_and_receiver() -> None:
    text = "\n".join(lines(subject("pairwise", "all_to_all", ranks=3)))
    assert "0→1 [0→1]" in text
    assert "2→0 [2→0]" in text


def test_words_for_elements() -> None:
    assert runs(np.array([4, 5, 6, 0, 1, 9])) == [(4, 7), (0, 2), (9, 10)]
    assert runs(np.array([], np.int64)) == []
    (steps,) = subject("ring", ranks=4).channels
    assert contributed(steps[0].moves[0].data) == ""
    assert contributed(steps[2].moves[3].data) == "1-3"


def build_half_a_message(group: object, _call: object, _tuning: object) -> Schedule:
    """Rank 0 sends what nobody receives."""
    rank = group.rank  # type: ignore[attr-defined]
    first = rank == 0
    sends = (transfers(rank, 1 - rank, SEND, 0, 2, first),)
    return Schedule((lambda: iter([Round(sends=sends)]),))


def test_a_message_with_one_end_is_named() -> None:
    known = {"all_reduce": {"broken": Algorithm(build_half_a_message)}}  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"rank 0, .* sends to rank 1, which receives nothing"):
        subject("broken", ranks=2, known=known)


def test_local_steps_move_what_is_said_of_elements() -> None:
    def build(group: object, _call: object, _tuning: object) -> Schedule:
        rank = group.rank  # type: ignore[attr-defined]
        swap = (
            copies(rank, Place(SEND, 0), Place(RECV, 1), 1),
            copies(rank, Place(SEND, 1), Place(RECV, 0), 1),
        )
        sends = (transfers(rank, 1 - rank, RECV, 0, 2, rank == 0),)
        receives = (transfers(rank, 1 - rank, RECV, 0, 2, rank == 1),)
        return Schedule((lambda: iter([Round(local=swap), Round(), Round(receives, sends)]),))

    known = {"all_reduce": {"swap": Algorithm(build)}}  # type: ignore[arg-type]
    (steps,) = subject("swap", ranks=2, known=known).channels
    assert [step.number for step in steps] == [0, 2]
    assert steps[1].moves[0].data.elements.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"algorithm": "rnig"},
            "no algorithm is called 'rnig'; did you mean ring. Give one of .*tree",
        ),
        (
            {"algorithm": "ring", "collective": "gather"},
            "gather has no .*'ring'; give one of .*lin",
        ),
        ({"algorithm": "ring", "collective": "reduction"}, "no collective is called 'reduction'"),
        ({"algorithm": "ring", "ranks": 65}, "ranks is 65; give a number from 1 to 64"),
        ({"algorithm": "ring", "ranks": 0}, "ranks is 0"),
        ({"algorithm": "ring", "root": 0}, "all_reduce has no root"),
        ({"algorithm": "linear", "collective": "gather", "root": 8}, "root is 8; .* from 0 to 7"),
        ({"algorithm": "ring", "count": -1}, "count is -1; give a number from 0 to"),
        ({"algorithm": "dissemination", "count": 8}, "barrier moves no elements; leave count out"),
        ({"algorithm": "ring", "segment": 0}, "segment is 0; give a number at least 1"),
        ({"algorithm": "ring", "channels": 0}, "channels is 0"),
        ({"algorithm": "ring", "nodes": 9}, "nodes is 9; give a number from 1 to 8"),
        ({"algorithm": "shm", "nodes": 2}, "shm takes ranks that share memory.*give 1 node"),
        (
            {"algorithm": "pairwise", "collective": "all_to_all", "count": 12},
            "12 elements are not 8 of them; give a count that is a multiple of 8",
        ),
        (
            {"algorithm": "ring", "collective": "all_gather", "deterministic": True},
            "has no form that folds in rank order",
        ),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        subject(**given)  # type: ignore[arg-type]


def test_uneven_blocks_are_drawn_where_the_algorithm_takes_them() -> None:
    shown = subject("ring", "all_gather", ranks=3, count=7)
    assert shown.call.counts == (2, 2, 3)
    assert not shown.call.uniform


def test_without_the_library_svg_is_written_and_png_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    svg = draw(subject("ring", ranks=2, segment=whole))
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    save(svg, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text("utf-8") == svg
    for refused in (check_place, partial(save, svg)):
        with pytest.raises(ConfigurationError, match=r"pip install '?vl-convert-python"):
            refused(tmp_path / "a.png")
