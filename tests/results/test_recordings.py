"""Recorded programs in a results file: packed, read, joined of the parts of their ranks, damaged, killed."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings_made import MARK, all_reduce, made

from hpccomm.results.recording import CALL_COLUMNS, Calls, RecordedGroup, Recording
from hpccomm.results.recording_file import read, write
from hpccomm.results.training import TrainingNote

NAMES = [each.name for each in CALL_COLUMNS]


def random_calls(seed: int, ranks: int, most: int, signatures: int = 3) -> Calls:
    """Return columns with gaps and differences of all sizes."""
    chance = np.random.default_rng(seed)
    counts = chance.integers(0, most + 1, ranks)
    calls = int(counts.sum())

    def sizes(low: int = 0) -> np.ndarray:
        bits = chance.integers(0, 41, calls)
        return chance.integers(low, 1 + (1 << bits), calls)

    begin = np.concatenate([np.sort(each) for each in np.split(sizes(), np.cumsum(counts)[:-1])])
    end = begin + sizes()
    asked = np.where(chance.random(calls) < 0.5, 0, begin + sizes())
    waited = np.where(chance.random(calls) < 0.5, end - begin, sizes())
    columns = {
        "signature": chance.integers(0, signatures, calls).astype("<i4"),
        "number": sizes(),
        "begin": begin - (1 << 40),
        "end": end - (1 << 40),
        "asked": np.where(asked, asked - (1 << 40), 0),
        "waited": waited,
        "buffer": sizes() << 20,
        "stream": -sizes(),
        "failed": chance.integers(0, 2, calls).astype("u1"),
    }
    return Calls(np.cumsum([0, *counts]), columns)


def assert_same(one: Recording, other: Recording) -> None:
    assert one.calls.starts.tolist() == other.calls.starts.tolist()
    for name in NAMES:
        assert one.calls[name].dtype == other.calls[name].dtype, name
        np.testing.assert_array_equal(one.calls[name], other.calls[name], name)
    assert (one.groups, one.signatures) == (other.groups, other.signatures)
    assert [each.values for each in one.signatures] == [each.values for each in other.signatures]
    assert (one.facts, one.notes, one.status) == (other.facts, other.notes, other.status)


def program(ranks: int) -> Recording:
    """Return one with three signatures and two groups, without calls."""
    base = made([[]] * ranks)
    groups = (*base.groups, RecordedGroup("world/1", "half ä", (1, 0)))
    signatures = (all_reduce(64), replace(all_reduce(1 << 20), group=1), MARK)
    notes = (TrainingNote(0, "of mine"),)
    return replace(base, groups=groups, signatures=signatures, notes=notes)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(2, 4), st.sampled_from([0, 1, 5, 300, 20_000]))
def test_every_call_comes_back(tmp_path_factory, seed, ranks, most):
    path = tmp_path_factory.mktemp("r") / "t.h5"
    recording = replace(program(ranks), calls=random_calls(seed, ranks, most))
    assert write(path, recording) == "recording0001"
    (stored,) = read(path)
    assert_same(stored, recording)
