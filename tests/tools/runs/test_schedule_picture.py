"""`hpccomm plot --schedule` shows the messages and folds that a schedule's tables have, and where it is written."""

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
    world,
)
from hpccomm.tools.drawing import check_place, save
from hpccomm.tools.main import main
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
    # What moves nothing is drawn, too.
    count = None if collective == "barrier" else 0
    assert "</svg>" in draw(subject(name, collective, ranks=3, count=count))


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
    blocks = "\n".join(lines(subject("pairwise", "all_to_all", ranks=3)))
    assert "0→1 [0→1]" in blocks
    assert "2→0 [2→0]" in blocks


def test_words_for_elements() -> None:
    assert runs(np.array([4, 5, 6, 0, 1, 9])) == [(4, 7), (0, 2), (9, 10)]
    assert runs(np.array([], np.int64)) == []


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


def test_uneven_blocks_are_drawn_where_the_algorithm_takes_them() -> None:
    shown = subject("ring", "all_gather", ranks=3, count=7)
    assert shown.call.counts == (2, 2, 3)
    assert not shown.call.uniform


def test_without_the_library_svg_is_written_and_png_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ring = ["plot", "--schedule", "ring", "--ranks"]
    # Other tests have loaded the library: this is how an import fails all the same.
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert main([*ring, "3", "--text"]) == 0
    assert "round 0: 0→1 [2:3]" in capsys.readouterr().out
    for _ in range(2):  # the same schedule gives the same bytes
        assert main([*ring, "4"]) == 0
        assert capsys.readouterr().out == (
            "ring all_reduce: 4 ranks, 4 elements: 6 rounds, 24 messages, "
            "a rank sends at most 6 elements\ndrawn in ring-all_reduce-4.svg\n"
        )
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
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    given, name = line.split(" > ")
    monkeypatch.chdir(tmp_path)
    assert main(["plot", "--schedule", *given.split()]) == 0
    assert f"drawn in {name}\n" in capsys.readouterr().out
    (file,) = tmp_path.iterdir()
    start = b"\x89PNG" if name.lower().endswith("png") else b"<svg"
    assert (file.name, file.read_bytes()[:4]) == (name, start)
