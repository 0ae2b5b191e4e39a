"""The table of a tuning file for `auto`, from the setting to the call."""

from pathlib import Path

import numpy as np
import pytest
from appending import add_tables

import hpccomm
from hpccomm import CommOptions
from hpccomm.calls.tuning_table import Pick, Shape, Table, TableRow
from hpccomm.communicator import creation
from hpccomm.testing import run_ranks
from hpccomm.tools.tune.measuring import policy_of

RANKS = 3
ROWS = {
    ("all_reduce", "own"): (TableRow(0, Pick("tree")), TableRow(1000, Pick("ring", 4096, 3))),
    ("broadcast", "own"): (TableRow(0, Pick("chain", 1 << 16)),),
}


def shape(ranks: int = RANKS) -> Shape:
    return run_ranks(ranks, lambda comm: policy_of(comm).shape)[0]


def write(file: Path, *shapes: Shape) -> str:
    return add_tables(file, *(Table(each, "2026-11-21", ROWS) for each in shapes))


def chosen(comm: hpccomm.Communicator) -> list[tuple[str, int | None]]:
    choices = [comm.explain("all_reduce", np.ones(count, np.uint8)) for count in (999, 1000)]
    choices.append(comm.explain("broadcast", np.ones(1 << 20, np.uint8)))
    x = np.full(5000, comm.rank + 1)
    comm.all_reduce(x)
    assert (x == sum(range(1, comm.size + 1))).all()
    return [(choice.algorithm, choice.segment) for choice in choices]


def reason(comm: hpccomm.Communicator) -> str:
    return comm.explain("all_reduce", np.ones(4096, np.uint8)).reason


def test_auto_goes_by_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "t.h5", shape())
    told = run_ranks(RANKS, chosen, options=CommOptions(tuning_file=file))
    assert [name for name, _ in told[0]] == ["tree", "ring", "chain"]
    assert told[0][2][1] == 1 << 16
    assert told == [told[0]] * RANKS
    monkeypatch.setenv("HPCCOMM_TUNING_FILE", file)
    assert run_ranks(RANKS, chosen) == told
    # What is said outright comes first.
    segmented = run_ranks(RANKS, chosen, options=CommOptions(segment=8192))
    assert segmented[0][2] == ("chain", 8192)
    built_in = run_ranks(RANKS, chosen, options=CommOptions(tuning_file=""))
    assert built_in != told
    said = run_ranks(RANKS, reason)[0]
    assert f"from 1000 bytes on by tuning file {file}, measured on 2026-11-21" in said


def test_groups_go_by_the_table_of_their_size(tmp_path: Path) -> None:
    def of_group(comm: hpccomm.Communicator) -> tuple[str, str] | None:
        with_two = comm.split(0 if comm.rank < 2 else None)
        if with_two is None:
            return None
        choice = with_two.explain("broadcast", np.ones(8, np.uint8))
        with_two.finalize()
        return choice.algorithm, choice.reason

    both = write(tmp_path / "both.h5", shape(2), shape())
    name, said = run_ranks(RANKS, of_group, options=CommOptions(tuning_file=both))[0]
    assert (name, "tuning file" in said) == ("chain", True)
    alone = write(tmp_path / "alone.h5", shape())
    said = run_ranks(RANKS, of_group, options=CommOptions(tuning_file=alone))[1][1]
    assert "built-in table" in said


def test_a_file_of_another_shape_steps_aside_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / "t.h5", shape(7))
    options = CommOptions(tuning_file=file)
    with caplog.at_level("WARNING", logger="hpccomm"):
        reasons = run_ranks(RANKS, reason, options=options)
        assert run_ranks(RANKS, reason, options=options) == reasons
    assert reasons == [reasons[0]] * RANKS
    assert "built-in table" in reasons[0]
    (said,) = caplog.messages
    assert f"tuning file {file} does not fit this job" in said


NETWORK = """
nodes = 2
ranks_per_node = 1
reduce = 1e10
[across]
latency = 5e-2
bandwidth = 1e12
"""


def test_the_network_of_the_settings_is_rank_0s_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "slow.toml"
    file.write_text(NETWORK)

    def known(comm: hpccomm.Communicator) -> tuple[str, float]:
        network = policy_of(comm).network()
        assert network.inner is not None
        return network.name, network.inner.latency

    typical = run_ranks(RANKS, known)
    assert typical == [("typical", 8e-6)] * RANKS
    # It has no [inner]: there what is typical counts.
    named = run_ranks(RANKS, known, options=CommOptions(network=str(file)))
    assert named == [("slow", 8e-6)] * RANKS
    monkeypatch.setenv("HPCCOMM_NETWORK", "lab1g")
    assert run_ranks(RANKS, known)[0] == ("lab1g", 1e-6)


def test_facts_that_rank_0_cannot_read_are_an_error_on_every_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hidden() -> int:
        raise PermissionError(13, "Permission denied")

    def ask(comm: hpccomm.Communicator) -> str:
        comm.barrier()  # the first communicator is made
        if comm.rank == 0:
            # No real file of the kernel's can be hidden from one thread.
            monkeypatch.setattr(creation, "cores", hidden)
        comm.barrier()
        with pytest.raises(hpccomm.ConfigurationError) as caught:
            hpccomm.new_comm("loopback")
        return str(caught.value)

    said = run_ranks(RANKS, ask)
    assert len(set(said)) == 1
    assert "Permission denied" in said[0]


@pytest.mark.parametrize(
    ("setting", "words"), [("tuning_file", "No such file"), ("network", "is not a ready network")]
)
def test_a_file_that_is_not_there_is_refused_on_every_rank(
    tmp_path: Path, setting: str, words: str
) -> None:
    options = CommOptions(**{setting: str(tmp_path / "none")})

    def ask(comm: hpccomm.Communicator) -> None:
        with pytest.raises(hpccomm.ConfigurationError, match=words):
            hpccomm.new_comm("loopback", options=options)

    run_ranks(RANKS, ask)
