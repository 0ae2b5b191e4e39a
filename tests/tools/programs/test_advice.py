"""The advice on programs whose cause and gain are known."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from damage import called, output
from recordings_made import MICRO, MadeCall, all_reduce, in_turn, made, repeated, stepped

from hpccomm.results import recording_file
from hpccomm.results.recording import CallSignature, Recording
from hpccomm.tools.programs.advice import advise, bound
from hpccomm.tools.programs.analysis import Analysis
from hpccomm.tools.programs.model import predict

FIXED, BYTE = 20 * MICRO, 0.01 * MICRO
"""Nanoseconds of a call, and of a byte."""
BETWEEN = 2 * MICRO


def program(
    compute: Sequence[float], *, small: int = 0, large: int = 0, hosts: Sequence[str] = ()
) -> Recording:
    """Return 40 steps: each rank computes so many ms, then `small` sums of 256 bytes and one of `large` bytes."""
    signatures = [all_reduce(256, site="statistics(), train.py line 20")] * small
    signatures += [all_reduce(large, site="step(), train.py line 31")] * bool(large)
    count = len(signatures)

    def before(rank: int, at: int) -> int:
        noise = at // count % 4 * MICRO
        return BETWEEN if at % count else int(compute[rank] * 1e6) + noise

    def transfer(at: int) -> int:
        return int(FIXED + BYTE * signature(at).nbytes)

    def signature(at: int) -> CallSignature:
        return signatures[at % count]

    return in_turn(len(compute), 40 * count, before, transfer, signature, marks=count, hosts=hosts)


def step(recording: Recording) -> float:
    return Analysis(recording).step


def told(recording: Recording, folder: Path, *words: str) -> str:
    """Return what the verb prints of a recording."""
    recording_file.write(folder / "t.h5", recording)
    return output("advise", folder / "t.h5", *words)


BOTH = {"small": 200, "large": 1 << 18}


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        (program([2, 8], small=1), program([5, 5], small=1), "balance"),
        (program([2, 2], small=300), program([2, 2], large=300 << 8), "merge"),
        (program([4, 24], **BOTH), program([14, 14], **BOTH), "balance"),
    ],
)
def test_the_cause_comes_first_with_its_gain(before, after, cause: str) -> None:
    analysis = Analysis(before)
    first = advise(analysis)[0]
    assert first.cause == cause
    assert analysis.step - first.seconds == pytest.approx(analysis.step - step(after), rel=0.1)
    assert analysis.error < 0.01


def test_pieces_of_a_recording_without_steps_have_the_advice_of_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = np.random.default_rng(1)
    took = [chance.integers(*of, 4000) for of in ((2000, 3000), (5000, 6000))]
    sizes = chance.integers(1, 50, 4000).tolist()

    def compute(rank: int, at: int) -> int:
        # The last quarter of the calls takes longer.
        return int(took[rank][at] * (1 if at % 10 else 100) * (1 if at < 3000 else 1.5))

    def signature(at: int) -> CallSignature:
        return all_reduce(8 * sizes[at], site="step(), train.py line 3")

    recording = in_turn(2, 4000, compute, lambda _: 20 * MICRO, signature, marks=0)
    whole = Analysis(recording)
    # A step of more than 100,000 acts would be made and advised in a minute.
    monkeypatch.setattr("hpccomm.tools.programs.model.WHOLE", 3000)
    pieces = Analysis(recording)
    assert len(whole.model.acts) == 8002
    assert len(pieces.model.acts) == pytest.approx(3000, rel=0.2)
    assert pieces.model.steps == pytest.approx(3000 / 8000)
    for faster in (1.0, 0.5):  # as fast as it was, and half the computation
        seconds = []
        for each in (whole.model, pieces.model):
            acts = each.acts.copy()
            acts["compute"] *= faster
            seconds.append(predict(replace(each, acts=acts)).seconds)
        assert seconds[1] == pytest.approx(seconds[0], rel=0.1)
    advised = advise(whole), advise(pieces)
    for one_of, other in zip(*advised, strict=True):
        assert one_of.cause == other.cause
        assert one_of.seconds == pytest.approx(other.seconds, rel=0.1)
    assert [each.cause for each in advised[0]] == ["merge", "balance"]
    merged = [int(each[0].what.split()[1]) for each in advised]  # of all calls, not the pieces'
    assert merged[1] == pytest.approx(merged[0], rel=0.1)


def test_large_sums_between_nodes_are_compressed() -> None:
    analysis = Analysis(program([2, 2], large=4 << 20, hosts=("a", "b")))
    first, second = advise(analysis)
    assert (first.cause, second.cause) == ("compress", "overlap")
    # Half of the bytes, but for what converting them takes on this machine.
    half = analysis.step - step(program([2, 2], large=2 << 20))
    told = re.search(r"to convert the values takes ([\d.]+) ms here", first.why)
    assert told is not None
    assert analysis.step - first.seconds == pytest.approx(half - float(told[1]) * 1e-3, rel=0.02)
    # What is computed before it can go on meanwhile, but for the last part of the gradients.
    assert analysis.step - second.seconds == pytest.approx(2e-3 * 7 / 8, rel=0.05)
    # On one node nothing moves the bytes but the cores.
    assert advise(Analysis(program([2, 2], large=4 << 20))) == []


def test_all_ranks_of_a_slow_node_are_a_slow_node() -> None:
    hosts = ("a", "a", "b", "b", "c", "c")
    (first,) = advise(Analysis(program([4, 4, 4, 4, 6, 6], hosts=hosts, large=256)))
    assert "ranks 4 and 5 (c)" in first.what
    assert "hpccomm doctor" in first.attempt
    assert first.seconds == pytest.approx(4.02e-3, rel=0.01)


def test_what_the_prediction_cannot_tell_is_uncertain(tmp_path: Path) -> None:
    """Every second step takes three times as long."""

    def compute(rank: int, step: int) -> int:
        return (1000 + 200 * rank) * (1 + 2 * (step % 2)) * MICRO

    text = told(stepped(2, 40, compute, 100 * MICRO, 64), tmp_path)
    assert "8% less" in text
    assert ", uncertain" in text
    assert "recorder.step()" not in text  # as they are marked


def test_small_calls_that_wait_for_each_other_are_merged_for_that() -> None:
    """Their fixed cost is little; in each the ranks lose as much again as they compute."""

    def compute(_rank: int, at: int) -> int:
        return 2 * MICRO if (at + 1) % 50 else 100 * MICRO

    def transfer(at: int) -> int:
        return 2 * MICRO if (at + 1) % 3 else 42 * MICRO

    one = all_reduce(32)
    analysis = Analysis(in_turn(2, 2000, compute, transfer, lambda _: one, marks=50))
    (first,) = advise(analysis)
    blocked = first.why.partition(" of a step")[0].removeprefix("they block for ")
    assert float(blocked.rstrip("%")) / 100 == pytest.approx(
        1 - first.seconds / analysis.step, abs=0.2
    )


def test_what_gains_less_than_three_percent_is_not_said() -> None:
    analysis = Analysis(program([5, 5.1], small=2))
    assert advise(analysis) == []
    assert "of a step is compute" in bound(analysis)


@pytest.mark.parametrize("end", [0, 10])
def test_a_single_call_is_a_program_too(end: int) -> None:
    analysis = Analysis(made([[MadeCall(all_reduce(64), 1, 0, end)], []], hosts=("", "")))
    assert advise(analysis) == []
    assert bound(analysis)


@pytest.mark.parametrize("mark", [None, 190])
def test_the_error_of_one_step_is_not_known(tmp_path: Path, mark: int | None) -> None:
    # What is left over of a fit to one value says nothing: statistics.stdev([1.0]) raises, too.
    one = all_reduce(64)
    ranks = [(one, 80, 90), (one, 170, 180)], [(one, 10, 90), (one, 100, 180)]
    recording = repeated(*ranks, steps=1, mark=mark)
    text = told(recording, tmp_path)
    assert "It is one step, so that the error of predictions is not known" in text
    assert ("recorder.step()" in text) == (mark is None)
    assert "less, error unknown, uncertain" in text
    assert "±" not in text
    said = json.loads(told(recording, tmp_path, "--json"))
    assert said["error"] is None
    assert all(each["uncertain"] for each in said["advice"])


def test_an_algorithm_that_suits_other_sizes() -> None:
    recording = program([2] * 4, large=4 << 20, hosts="abcd")
    recording.signatures[0].values["algorithm"] = "recursive_doubling"  # type: ignore[index]
    assert "algorithm" in [each.cause for each in advise(Analysis(recording))]


def test_the_verb(tmp_path: Path) -> None:
    text = told(program([2, 8], small=100), tmp_path)
    advice = "1. Balance the load of rank 1", "2. Merge 100"
    assert all(part in text for part in ("recording0001", "waiting for others", *advice))
    advised = "advise", tmp_path / "t.h5"
    said = json.loads(output(*advised, "--json"))
    parts = sum(each["seconds"] for each in said["parts"].values())
    assert parts == pytest.approx(said["seconds"])
    assert [each["cause"] for each in said["advice"]] == ["balance", "merge"]
    assert "recording0001" in called(*advised, "--run", "recording0009")[2]
    lines = [line.split() for line in output(*advised, "--what-if").splitlines() if " ms " in line]
    assert {line[1] for line in lines} == {"NVLink", "PCIe", "InfiniBand", "Ethernet"}
    model = ["--gradients", "1G", "--compute", "250ms", "--ranks", "64"]
    text = output("advise", "--what-if", *model)
    assert text.count("InfiniBand") == text.count("Ethernet") == 2
    output("advise", "--what-if", *model[:4], status=2)
    output(*advised, *model, status=2)
