"""`hpccomm plot --schedule` shows the messages and folds that a schedule's tables have, and where it is written."""

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from damage import output
from proofs import SLICING, scheduled

from hpccomm.contracts.collectives import BLOCKWISE
from hpccomm.errors import ConfigurationError, UsageError
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm
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
)
from hpccomm.tools.drawing import check_place, save
from hpccomm.tools.runs.schedule import draw, lines, runs
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
    count, nodes = None if collective == "barrier" else parts, 1 if shared else 2
    how = {"count": count, "segment": 2, "channels": 2, "nodes": nodes}
    return subject(name, collective, ranks=ranks, **how)


def said(shown: Subject, segment: int, channels: int) -> Counter[tuple[str, int, int, int, int]]:
    """What the schedule's tables say: how, channel, round, from whom, to whom."""
    calls = [shown.call] * shown.size
    if shown.call.individual:
        count, dtype = shown.call.counts[0], shown.call.dtype
        calls = signatures(shown.collective, shown.size, count, dtype=dtype)
    build = ALGORITHMS[shown.collective][shown.algorithm].build
    schedule = scheduled(build, calls, Tuning(segment, channels, shown.topology))
    found: Counter[tuple[str, int, int, int, int]] = Counter()
    for channel, make in enumerate(schedule.channels):
        for number, each in enumerate(make()):
            ends = [("message", table.rank, table.peer) for table in each.sends]
            for step in each.local:
                sources = getattr(step, "sources", None) or (step.source,)
                ends += [("read", place.peer, step.rank) for place in sources]
                ends += [("write", step.rank, step.target.peer)]
            for how, source, target in ends:
                if source is not None and target is not None:
                    pairs = zip(source.tolist(), target.tolist(), strict=True)
                    moved = [(a, b) for a, b in pairs if a != b or how == "message"]
                    found.update((how, channel, number, *pair) for pair in moved)
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
    # What moves nothing is drawn, too.
    count = None if collective == "barrier" else 0
    assert "</svg>" in draw(subject(name, collective, ranks=3, count=count))


def rank_columns(svg: str, channels: int) -> list[list[float]]:
    """Where each rank's line is, for each channel; by the numbers above the lines."""
    white = [each for each in ET.fromstring(svg).iter(f"{SVG}text") if each.get("fill") == "white"]
    top = min((each.get("y", "") for each in white), key=float)
    numbers = [each for each in white if each.get("y") == top]
    size = len(numbers) // channels
    assert [each.text for each in numbers] == [str(rank) for rank in range(size)] * channels
    places = [float(each.get("x", "")) for each in numbers]
    return [places[at : at + size] for at in range(0, len(places), size)]


def nearest(columns: list[float], x: float) -> int:
    return min(range(len(columns)), key=lambda rank: abs(columns[rank] - x))


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
    # The root sends to two, and another rank to one.
    assert (
        "at most 12 elements" in list(lines(subject("binomial", "broadcast", ranks=4, count=6)))[1]
    )
    blocks = "\n".join(lines(subject("pairwise", "all_to_all", ranks=3)))
    assert "0→1 [0→1]" in blocks
    assert "2→0 [2→0]" in blocks


def test_words_for_elements() -> None:
    assert runs(np.array([4, 5, 6, 0, 1, 9])) == [(4, 7), (0, 2), (9, 10)]
    assert runs(np.array([], np.int64)) == []


def of_two_ranks(*rounds: Callable[[Any], Round]) -> Subject:
    """An all-reduce of two ranks that has these rounds, by the ranks of a group."""

    def build(group: Any, _call: object, _tuning: object) -> Schedule:
        return Schedule((lambda: iter([make(group.rank) for make in rounds]),))

    return subject("made", ranks=2, known={"all_reduce": {"made": Algorithm(build)}})


def test_a_message_with_one_end_is_named() -> None:
    with pytest.raises(UsageError, match=r"rank 0, .* sends to rank 1, which receives nothing"):
        of_two_ranks(lambda rank: Round(sends=(transfers(rank, 1 - rank, SEND, 0, 2, rank == 0),)))


def test_local_steps_move_what_is_said_of_elements() -> None:
    def swap(rank: Any) -> Round:
        crossed = (copies(rank, Place(SEND, a), Place(RECV, 1 - a), 1) for a in (0, 1))
        return Round(local=tuple(crossed))

    def message(rank: Any) -> Round:
        receives, sends = (transfers(rank, 1 - rank, RECV, 0, 2, rank == end) for end in (1, 0))
        return Round((receives,), (sends,))

    (steps,) = of_two_ranks(swap, lambda _: Round(), message).channels
    assert [step.number for step in steps] == [0, 2]
    assert steps[1].moves[0].data.elements.tolist() == [1, 0]


def test_uneven_blocks_are_drawn_where_the_algorithm_takes_them() -> None:
    shown = subject("ring", "all_gather", ranks=3, count=7)
    assert shown.call.counts == (2, 2, 3)
    assert not shown.call.uniform


plotted = partial(output, "plot", "--schedule")


def test_without_the_library_svg_is_written_and_png_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Other tests have loaded the library: this is how an import fails all the same.
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert "round 0: 0→1 [2:3]" in plotted("ring", "--ranks", 3, "--text")
    for _ in range(2):  # the same schedule gives the same bytes
        told, where = plotted("ring", "--ranks", 4).splitlines()
        assert told.startswith("ring all_reduce: 4 ranks, 4 elements: 6 rounds, 24 messages, ")
        assert where == "drawn in ring-all_reduce-4.svg"
        picture = (tmp_path / "ring-all_reduce-4.svg").read_text("utf-8")
        assert picture == draw(subject("ring", ranks=4))
    for refused in (check_place, partial(save, picture)):
        with pytest.raises(ConfigurationError, match=r"pip install '?vl-convert-python"):
            refused(tmp_path / "a.png")


# What is given, and where the picture is.
PLACES = """
ring --ranks 4 --count 8 --segment 2 --channels 2 > ring-all_reduce-4-count8-segment2-channels2.svg
linear --ranks 3 --root 0 > linear-gather-3-root0.svg
linear --ranks 3 --nodes 2 --deterministic > linear-all_reduce-3-nodes2-deterministic.svg
linear --collective gather --root 2 --output a.PNG > a.PNG
linear --ranks 1 --output b.svg > b.svg
ring --ranks 2 --output c.png > c.png
"""


@pytest.mark.parametrize("line", PLACES.split("\n")[1:-1])
def test_a_picture_goes_where_it_is_told_or_has_the_name_of_what_was_given(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, name = line.split(" > ")
    monkeypatch.chdir(tmp_path)
    assert f"drawn in {name}\n" in plotted(*given.split())
    (file,) = tmp_path.iterdir()
    start = b"\x89PNG" if name.lower().endswith("png") else b"<svg"
    assert (file.name, file.read_bytes()[:4]) == (name, start)
