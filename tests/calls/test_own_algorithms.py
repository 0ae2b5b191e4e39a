"""Algorithms that are not hpccomm's: given to a call as a function, or registered by a package."""

import importlib
import os
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from appending import add_tables
from installed import announce

from front.forms import ALL_FORMS, made
from hpccomm import CommOptions, ConfigurationError, RankMismatch, UsageError
from hpccomm.calls import policy
from hpccomm.calls.proofs import proven
from hpccomm.calls.tuning_table import Pick, Table, TableRow
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Reach
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm, recursive_doubling, registered, ring
from hpccomm.schedules.cost.network import load
from hpccomm.schedules.cost.rounds import price
from hpccomm.schedules.schedule import Build, Group, Schedule, Tuning, whole
from hpccomm.testing import prove, run_ranks
from hpccomm.tools.main import main
from hpccomm.tools.tune.measuring import policy_of

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"


def install(folder: Path, entries: dict[str, str]) -> None:
    """What pip would leave of the page's package: its module, and its entry points."""
    shutil.copy(EXAMPLES / "two_way_ring.py", folder)
    announce(folder, "two_way_ring", "hpccomm.algorithms", entries)


def documented() -> dict[str, str]:
    text = (EXAMPLES / "two_way_ring.toml").read_text()
    return tomllib.loads(text)["project"]["entry-points"]["hpccomm.algorithms"]


@pytest.fixture
def installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[dict[str, str]], Path]]:
    def use(entries: dict[str, str]) -> Path:
        install(tmp_path, entries)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        forget()
        return tmp_path

    def forget() -> None:
        registered.cache_clear()
        sys.modules.pop("two_way_ring", None)

    yield use
    monkeypatch.undo()
    forget()


def gathered(comm, algorithm: object) -> None:
    x = np.arange(3.0) + 10 * comm.rank
    expected = np.arange(3.0) + 10 * np.arange(comm.size)[:, None]
    for form in ALL_FORMS:
        assert np.array_equal(made(comm, form, "all_gather", x, algorithm=algorithm), expected)
    uneven = comm.all_gather_v(x[: comm.rank % 3], algorithm=algorithm)
    parts = [expected[rank, : rank % 3] for rank in range(comm.size)]
    assert np.array_equal(uneven, np.concatenate(parts))


def test_a_registered_algorithm_is_one_of_all(
    installed: Callable[[dict[str, str]], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path = installed(documented())
    name = "two_way_ring"

    def on_rank(comm) -> None:
        gathered(comm, name)
        x = np.ones(2)
        choice = comm.explain("all_gather", x, algorithm=name)
        assert choice.algorithm == name
        assert choice.schedule
        with pytest.raises(UsageError, match=r"give one of .*'two_way_ring'"):
            comm.all_gather(x, algorithm="no_such")
        with pytest.raises(UsageError, match="give one of"):
            comm.all_reduce(x, algorithm=name)

    for ranks in (1, 3):
        run_ranks(ranks, on_rank, timeout=60)
    options = CommOptions(algorithm=name)
    run_ranks(2, lambda comm: gathered(comm, None) or comm.all_reduce(np.ones(1)), options=options)

    prove("all_gather", name, 5, count=2)
    network = load("nvlink8")
    call = Signature("all_gather", np.dtype(np.float32), (1,) * network.ranks)
    assert price(network, call, name, Tuning(whole)) > 0
    shape, file = run_ranks(2, lambda comm: policy_of(comm).shape)[0], tmp_path / "t.h5"
    table = Table(shape, "2026-11-21", {("all_gather", "own"): (TableRow(0, Pick(name)),)})
    assert policy.read(add_tables(file, table)) == (table,)
    options = CommOptions(tuning_file=str(file))
    tuned = run_ranks(2, lambda comm: comm.explain("all_gather", np.ones(4)), options=options)
    assert [choice.algorithm for choice in tuned] == [name] * 2
    assert main(["plot", "--schedule", name, "--ranks", "5", "--text"]) == 0
    assert "all_gather" in capsys.readouterr().out
    simulated = ["simulate", "all_gather", "--cluster", "nvlink8", "-b", "64", "-e", "64"]
    assert main([*simulated, "--algorithm", name]) == 0
    assert name in capsys.readouterr().out


def test_perf_measures_a_registered_algorithm(tmp_path: Path) -> None:
    install(tmp_path, documented())
    command = [sys.executable, "-m", "hpccomm", "perf", "all_gather", "-b", "64", "-e", "64"]
    done = subprocess.run(
        [*command, "-n", "1", "-w", "0", "--algorithm", "two_way_ring"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "two_way_ring" in done.stdout


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("two_way_ring:no_such", "no_such"),
        ("two_way_ring:__doc__", "let it be a function"),
    ],
)
def test_one_that_cannot_be_used_is_an_error_where_it_is_asked_for(
    installed: Callable[[dict[str, str]], Path], value: str, words: str
) -> None:
    installed({"all_gather.mine": value})

    def on_rank(comm) -> None:
        comm.all_gather(np.ones(1))
        comm.all_gather(np.ones(1), algorithm="ring")
        with pytest.raises(ConfigurationError, match=rf"all_gather\.mine.*two_way_ring.*{words}"):
            comm.all_gather(np.ones(1), algorithm="mine")

    run_ranks(1, on_rank)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("all_gather.ring", "hpccomm has 'ring' itself"),
        ("all_gather.native", "hpccomm has 'native' itself"),
        ("gather_all.mine", "its name is not collective.algorithm"),
        ("mine", "its name is not collective.algorithm"),
    ],
)
def test_one_that_clashes_is_left_out_with_a_warning(
    installed: Callable[[dict[str, str]], Path], name: str, words: str
) -> None:
    installed({name: "two_way_ring:all_gather"})

    def on_rank(comm) -> None:
        with pytest.warns(RuntimeWarning, match=rf"of two_way_ring.*is not used: {words}"):
            comm.all_gather(np.ones(1), algorithm="ring")

    run_ranks(1, on_rank)


# A function that is given to a call.


def forgetful(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Without its last round."""
    *rounds, _ = ring.all_gather(group, call, tuning).channels[0]()
    return Schedule((lambda: iter(rounds),))


def endless(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    first = next(ring.all_gather(group, call, tuning).channels[0]())

    def rounds():
        while True:
            yield first

    return Schedule((rounds,))


def hoarding(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    return replace(ring.all_gather(group, call, tuning), scratch=10**9)


def own(build: Build) -> tuple[dict[Reach, Build], Signature, Tuning]:
    call = Signature("all_gather", np.dtype(np.float32), (4,) * 4)
    return {Reach.NONE: build}, call, Tuning(whole)


def fails(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    raise ZeroDivisionError


def test_a_function_makes_the_schedule_of_a_call() -> None:
    def on_rank(comm) -> None:
        gathered(comm, ring.all_gather)
        gathered(comm, Algorithm(ring.all_gather))
        for count in (0, 1, 7, 100_003):
            x = np.full(count, comm.rank + 1.0)
            comm.all_reduce(x, algorithm=ring.all_reduce)
            assert (x == sum(range(comm.size + 1))).all()

    for ranks in (1, 2, 5):
        run_ranks(ranks, on_rank, timeout=60)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (forgetful, "must hold element"),
        (endless, "never end|was written"),
        (fails, "it fails: ZeroDivisionError"),
        (lambda group, call, tuning: None, "let it return a hpccomm.schedules.schedule.Schedule"),
    ],
)
def test_a_wrong_schedule_is_refused_before_data_moves(build: Build, words: str) -> None:
    def on_rank(comm) -> None:
        for _ in range(2):
            with pytest.raises(UsageError, match=rf"is refused: .*({words})"):
                comm.all_gather(np.ones(2), algorithm=build)
        assert comm.all_reduce(np.ones(1))[0] == comm.size

    run_ranks(3, on_rank, timeout=60)


def test_what_is_too_much_to_prove_does_not_depend_on_how_fast_a_rank_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, usual, here = iter(range(10**9)), time.perf_counter, threading.get_ident()

    def slow() -> float:  # the service thread sleeps by the usual one
        return 1e3 * next(clock) if threading.get_ident() == here else usual()

    # The rank's clock runs as that of a very slow one.
    monkeypatch.setattr(time, "perf_counter", slow)
    proven("slow", *own(lambda *its: ring.all_gather(*its)), 4)
    with pytest.raises(UsageError, match="on 4 ranks it moves and keeps too much for a proof"):
        proven("large", *own(hoarding), 4)


def test_it_is_proved_once_for_calls_of_one_kind() -> None:
    built = []

    def counted(group: Group, call: Signature, tuning: Tuning) -> Schedule:
        built.append(group.size)
        return ring.all_gather(group, call, tuning)

    def on_rank(comm) -> int:
        comm.all_gather(np.ones(8), algorithm=counted)
        before = len(built)
        comm.all_gather(np.ones(80), algorithm=counted)
        return len(built) - before

    assert run_ranks(1, on_rank) == [1]  # what runs


def test_functions_that_differ_are_a_mismatch() -> None:
    def closure(first: Build) -> Build:
        return lambda *its: first(*its)

    def on_rank(comm) -> None:
        build = closure(recursive_doubling.all_gather if comm.rank else ring.all_gather)
        with pytest.raises(RankMismatch, match="schedule"):
            comm.all_gather(np.ones(2), algorithm=build)

    run_ranks(3, on_rank, timeout=60)


def test_a_function_alone_has_no_form_in_rank_order() -> None:
    def on_rank(comm) -> None:
        with pytest.raises(UsageError, match="ordered="):
            comm.all_reduce(np.ones(2), algorithm=ring.all_reduce, deterministic=True)

    run_ranks(1, on_rank)


def test_built_in_algorithms_that_are_given_as_objects_have_names_of_their_own() -> None:
    def names(comm) -> list[str]:
        given = (ALGORITHMS["all_reduce"][name] for name in ("ring", "tree", "shm"))
        return [comm.explain("all_reduce", np.ones(9), algorithm=each).algorithm for each in given]

    (said,) = {tuple(each) for each in run_ranks(2, names)}
    assert len({*said}) == 3
    assert said[0] == "hpccomm.schedules.algorithms.ring.all_reduce"
