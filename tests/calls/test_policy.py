"""Which algorithm a call takes, and which it may."""

import json
import re
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from appending import add_tables, example_info
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.calls import policy
from hpccomm.calls.policy import UNEVEN_BYTES, Machine, Policy, Tables, documents, nearest
from hpccomm.calls.tuning_table import CASES, Pick, Shape, Table, TableRow, TableRows
from hpccomm.contracts.collectives import COLLECTIVES, REDUCTIONS
from hpccomm.contracts.signature import Choice, Signature
from hpccomm.errors import ConfigurationError, UsageError
from hpccomm.reductions import ReduceOp
from hpccomm.results.writer import Writer
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network import Level, Network, dump, typical
from hpccomm.schedules.cost.terms import estimate, has_terms
from hpccomm.settings import DEFAULT_SEGMENT

RANKS = 4
SIZES = (0, 512, 513, 4 * 4096, 4 * 4096 + 1, 1 << 28)


def ask(collective: str, count: int = 1, **given: Any) -> Signature:
    op = ReduceOp.SUM if collective in REDUCTIONS else None
    return Signature(collective, np.dtype(np.float32), (count,), op=op, **given)


def place(ranks: int = RANKS, nodes: int = 1, **given: Any) -> Shape:
    facts: dict[str, Any] = {"ranks_per_node": ranks // nodes, "processor": "here", "cores": 4}
    facts |= {"backend": "mpi", "library": "Open MPI 5.0.11", "memory": "pages", **given}
    return Shape(ranks=ranks, nodes=nodes, **facts)


def policy_of(
    rows: dict[tuple[str, str], TableRows], ranks: int = RANKS, shared: bool = False
) -> Policy:
    shape = place(ranks, memory="pages" if shared else "off")
    network = typical().placed(ranks, ranks, typical())
    return Policy(shape, Table(shape, "2026-11-21", rows), "a table", lambda: network)


def decide(
    call: Signature, name: str = "auto", ranks: int = RANKS, shared: bool = False, **given: bool
) -> Choice:
    return policy_of({}, ranks, shared).decide(call, name, **given)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_auto_takes_what_applies(
    collective: str, count: int, uniform: bool, deterministic: bool
) -> None:
    ordered = deterministic and collective in REDUCTIONS
    call = ask(collective, count, uniform=uniform, deterministic=ordered)
    names, decision = policy.applicable(call), decide(call)
    nbytes = UNEVEN_BYTES if call.individual else policy.rounded_up(call.nbytes)
    network = policy_of({}).network()
    seconds = {
        name: estimate(network, collective, nbytes, name, DEFAULT_SEGMENT)
        for name in names
        if has_terms(collective, name)
    }
    if not seconds:  # nothing to choose between
        assert (decision.algorithm,) == names
        return
    assert seconds[decision.algorithm] == min(seconds.values())
    assert "shortest estimated time" in decision.reason or call.individual


def test_a_small_array_takes_few_messages_and_a_large_one_moves_few_bytes() -> None:
    assert decide(ask("all_reduce", 1)).algorithm == "recursive_doubling"
    assert decide(ask("all_reduce", 1 << 24)).algorithm in ("ring", "halving_doubling")
    assert decide(ask("broadcast", 1)).algorithm == "binomial"
    assert decide(ask("broadcast", 1 << 24)).algorithm in ("chain", "scatter_all_gather", "tree")
    assert decide(ask("all_reduce", 1 << 24), shared=True).algorithm == "shm"


def test_far_from_what_was_measured_hpccomms_algorithms_are_compared_by_estimates() -> None:
    tables = Tables(Machine("Open MPI 5.0.11", "any", 1))
    near, far = tables.policy(place(6, 3)), tables.policy(place(1024, 64))
    call = ask("all_reduce", 1 << 22)
    assert "built-in table for 6 ranks" in near.decide(call, "auto").reason
    said = far.decide(call, "auto").reason
    assert "no table that fits was measured" in said
    assert "us on the network 'typical'" in said
    # What the backend does itself is not estimated: the nearest table counts.
    assert "built-in table" in far.decide(call, "auto", native=True).reason


def test_the_network_of_the_settings_decides_between_estimates() -> None:
    call, shape = ask("all_reduce", 1 << 12), place(1024, 64)

    def taken(latency: float, bandwidth: float) -> Choice:
        links = Level(latency, bandwidth, 1)
        network = Network("mine", 2, 1, 1e10, None, links)
        tables = Tables(Machine("", "any", 1), links=("mine", dump(network)))
        return tables.policy(shape).decide(call, "auto")

    assert taken(1e-2, 1e10).algorithm in ("linear", "recursive_doubling")
    assert taken(1e-9, 1e6).algorithm not in ("linear", "recursive_doubling", "binomial")
    assert "'mine'" in taken(1e-2, 1e10).reason


shapes = st.builds(
    place,
    st.sampled_from((2, 4, 48)),
    st.sampled_from((1, 2)),
    backend=st.sampled_from(("mpi", "loopback", "somebody's")),
    library=st.sampled_from(("Open MPI 5.0.11", "MPICH 5.0.2", "Intel MPI 2021.17.0", "")),
    memory=st.sampled_from(("pages", "staging", "off")),
)


@given(shapes, st.sampled_from(COLLECTIVES), st.integers(0, 1 << 40), st.data())
def test_built_in_tables_take_what_applies(
    shape: Shape, collective: str, count: int, data: st.DataObject
) -> None:
    ordered = collective in REDUCTIONS and data.draw(st.booleans())
    call = ask(collective, count, uniform=data.draw(st.booleans()), deterministic=ordered)
    chooses = Tables(Machine(shape.library, "any", 1)).policy(shape)
    native, shared = data.draw(st.booleans()), shape.nodes == 1 and shape.memory != "off"
    decision = chooses.decide(call, "auto", native)
    assert decision.algorithm in policy.applicable(call, native, shared)
    assert decision.segment is None or decision.segment > 0


@given(
    shapes,
    st.sampled_from(COLLECTIVES),
    st.integers(0, 1 << 36),
    st.integers(0, 1 << 36),
    st.booleans(),
)
def test_sizes_of_a_class_have_one_choice(
    shape: Shape, collective: str, count: int, other: int, native: bool
) -> None:
    # What is kept for a class must not depend on the size that came first: ranks may have met others first.
    chooses = Tables(Machine(shape.library, "any", 1)).policy(shape)
    one = ask(collective, count)
    alike = [ask(collective, count ^ (other & mask)) for mask in (1, 7, count >> 3, count >> 1)]
    number = chooses.table.size_class(collective, one.nbytes)
    for each in alike:
        if chooses.table.size_class(collective, each.nbytes) == number:
            assert chooses.decide(each, "auto", native) == chooses.decide(one, "auto", native)


@given(st.lists(st.integers(1, 1 << 20), unique=True, max_size=6), st.integers(0, 1 << 21))
def test_a_row_holds_up_to_the_next(starts: list[int], nbytes: int) -> None:
    rows = tuple(TableRow(start, Pick(f"from {start}")) for start in sorted({0, *starts}))
    table = Table(place(), "2026-11-21", {("all_reduce", "own"): rows})
    wanted = [row for row in rows if row.start <= nbytes][-1]
    assert table.find("all_reduce", "own", nbytes) == wanted
    assert table.find("all_reduce", "native", nbytes) is None
    assert table.find("broadcast", "own", nbytes) is None


@pytest.mark.parametrize("starts", [[], [1], [0, 8, 4], [0, 4, 4]])
def test_rows_ascend_from_nothing(starts: list[int]) -> None:
    rows = tuple(TableRow(start, Pick("ring")) for start in starts)
    with pytest.raises(UsageError, match="begin at"):
        Table(place(), "2026-11-21", {("all_reduce", "own"): rows})


def test_auto_follows_the_table_where_it_applies() -> None:
    rows = {
        ("all_reduce", "native"): (TableRow(0, Pick("native")), TableRow(4096, Pick("shm", 65536))),
        ("all_reduce", "own"): (TableRow(0, Pick("ring", 1024, 3)),),
        ("all_reduce", "ordered"): (TableRow(0, Pick("shm")),),
    }

    def taken(count: int, name: str = "auto", *, native: bool, shared: bool, **given: bool) -> Pick:
        chooses = policy_of(rows, shared=shared)
        call = ask("all_reduce", count, **given)
        choice = chooses.decide(call, name, native)
        return Pick(choice.algorithm, choice.segment or 0, choice.channels)

    assert taken(1023, native=True, shared=True) == Pick("native")
    assert taken(1024, native=True, shared=True) == Pick("shm", 65536)
    assert taken(1024, native=True, shared=False) == Pick("native")  # shm does not apply
    assert taken(1024, native=False, shared=True) == Pick("ring", 1024, 3)
    assert taken(8, native=True, shared=True, deterministic=True) == Pick("shm")
    apart = taken(8, native=True, shared=False, deterministic=True)
    assert apart == Pick("recursive_doubling")
    # An algorithm that a call names is run the way that the table has for it.
    assert taken(1, "shm", native=True, shared=True) == Pick("shm", 65536)
    assert taken(1, "ring", native=True, shared=True) == Pick("ring", 1024, 3)


def test_the_reason_tells_the_size_and_the_table() -> None:
    rows = {("broadcast", "native"): (TableRow(0, Pick("native")), TableRow(512, Pick("binomial")))}
    call = ask("broadcast", 200)
    said = policy_of(rows).decide(call, "auto", native=True).reason
    assert said == "the fastest from 512 bytes on by a table"


def test_one_rank_needs_no_algorithm() -> None:
    call = ask("all_reduce", 1 << 24)
    assert decide(call, ranks=1, native=True, shared=True).algorithm == "native"


@given(st.sampled_from(COLLECTIVES), st.integers(0, 1 << 24), st.booleans(), st.booleans())
def test_ranks_choose_alike_whatever_differs_between_them(
    collective: str, count: int, native: bool, deterministic: bool
) -> None:
    # In place or not, and for an uneven all-to-all the counts, is each rank's own affair.
    how = {"deterministic": deterministic and collective in REDUCTIONS}
    calls = [ask(collective, count, in_place=in_place, **how) for in_place in (False, True)]
    if collective == "all_to_all":
        counts = ((0, count), (count, 0), (0, 0), (1 << 24, 1 << 24))
        calls = [
            Signature(collective, np.dtype(np.uint8), mine, theirs, uniform=False)
            for mine in counts
            for theirs in counts
        ]
    names, shape = policy.applicable(calls[0]), place()
    rows = (TableRow(0, Pick(names[0])), TableRow(1 << 10, Pick(names[-1])))
    tables = Tables(Machine(shape.library, "any", 1))
    for chooses in (tables.policy(shape), policy_of({(collective, "own"): rows})):
        assert len({chooses.decide(call, "auto", native) for call in calls}) == 1


CONDITIONS = ("uniform", "deterministic", "native", "shared")


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_does_not_apply_is_refused_with_what_does(collective: str) -> None:
    """An algorithm's own facts say whether it applies; the backend's own way comes first, and folds in no order."""
    every = {name for named in ALGORITHMS.values() for name in named} | {"native"}
    for values in product((False, True), repeat=len(CONDITIONS)):
        uniform, deterministic, native, shared = values
        ordered = deterministic and collective in REDUCTIONS
        call = ask(collective, uniform=uniform, deterministic=ordered)
        fits = {
            name
            for name, each in ALGORITHMS[collective].items()
            if (shared or not each.shared) and (uniform or not each.uniform)
            if not ordered or each.ordered is not None
        } | ({"native"} if native and not ordered else set())
        for name in fits:
            assert decide(call, name, shared=shared, native=native).algorithm == name
        if "native" in fits:
            assert decide(call, native=native).algorithm == "native"
        for name in [*sorted(every - fits), "magic", ""]:
            with pytest.raises(UsageError, match=f"this {call.collective}") as caught:
                decide(call, name, shared=shared, native=native)
            listed = str(caught.value).partition("give one of ")[2]
            assert {*re.findall(r"'(\w+)'", listed)} == fits | {"auto"}, (values, name)


# Which table.


def tuned(shape: Shape) -> Table:
    return Table(
        shape, "2026-11-21", {("all_reduce", "own"): (TableRow(0, Pick("ring", 4096, 3)),)}
    )


def test_a_tuned_table_is_taken_for_its_shape_alone() -> None:
    here, less = place(4), place(2)
    older = Table(here, "2020-01-01", {})
    tables = Tables(Machine(here.library, "here", 4), (older, tuned(here), tuned(less)), "t.h5")
    assert tables.misfit(here) == ""
    assert tables.policy(here).table is tables.tuned[1]  # the last of the shape
    assert tables.policy(less).table is tables.tuned[2]


def test_measurements_apply_to_half_to_twice_as_many_nodes_and_ranks_on_each() -> None:
    table, shapes = tuned(place(8, 2)), product(range(1, 9), range(1, 13))
    near = [(nodes, each) for nodes, each in shapes if table.near(place(nodes * each, nodes))]
    assert near == list(product((2, 3, 4), range(2, 9)))  # one node is another network


OTHERS = {
    "backend": "loopback",
    "library": "MPICH 5.0.2",
    "ranks": 8,
    "nodes": 2,
    "ranks_per_node": 8,
    "memory": "staging",
    "processor": "elsewhere",
    "cores": 96,
}


@pytest.mark.parametrize("field", OTHERS)
def test_a_table_of_another_shape_steps_aside_and_says_what_differs(field: str) -> None:
    here = place()
    there = place(**{"ranks_per_node": RANKS, field: OTHERS[field]})
    tables = Tables(Machine(here.library, "here", 4), (tuned(there),), "t.h5")
    said = tables.misfit(here)
    assert "t.h5 does not fit this job" in said
    assert "auto goes by the built-in table for" in said
    assert tables.policy(here).table in map(Table.of, documents())
    assert f"{field} is {getattr(here, field)!r} here and {OTHERS[field]!r} in the table" in said
    assert "hpccomm tune" in said
    assert not any(f"{other} is" in said for other in OTHERS if other != field)


def test_the_nearest_built_in_table_is_that_of_its_shape() -> None:
    for table in map(Table.of, documents()):
        assert nearest(table.shape) == table


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(COLLECTIVES), st.sampled_from(list(CASES))),
        st.lists(st.integers(1, 1 << 62), unique=True, max_size=3),
        max_size=5,
    ),
    st.integers(0, 1 << 40),
)
def test_tables_are_written_and_read_back(
    starts: dict[tuple[str, str], list[int]], segment: int
) -> None:
    rows = {
        (collective, case): tuple(
            TableRow(start, Pick(list(ALGORITHMS[collective])[-1], segment, segment % 5))
            for start in sorted({0, *given})
        )
        for (collective, case), given in starts.items()
    }
    table = Table(place(library="Mü 1", processor="a\tb"), "2026-11-21", rows)
    assert Table.of(tomllib.loads(table.toml())) == table
    assert Table.of(json.loads(json.dumps(table.document()))) == table


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ({"measured": None}, "damaged"),
        ({"all_reduce": {"own": [[0, "magic"]]}}, "'magic' is not an installed algorithm"),
        ({"all_reduce": {"own": [[0, "ring", -1, 0]]}}, "less than 0 segments"),
        (None, "no table"),
    ],
)
def test_a_file_with_no_table_that_can_be_used_is_refused(
    tmp_path: Path, spoil: dict[str, Any] | None, said: str
) -> None:
    file, entry = tmp_path / "t.h5", tuned(place(2)).document()
    if spoil:
        add_tables(file, tuned(place(1)), tuned(place(2)))
    with Writer(file, example_info()) as writer:
        if spoil:
            assert [table.shape.ranks for table in policy.read(str(file))] == [1, 2]
            changed = {key: value for key, value in (entry | spoil).items() if value is not None}
            writer.add_entry(policy.ENTRY, changed)
    with pytest.raises(ConfigurationError, match=said):
        policy.read(str(file))


def test_what_is_no_results_file_is_refused(tmp_path: Path) -> None:
    words = tmp_path / "words.h5"
    words.write_text("no HDF5")
    for name, said in ((words, "not an HDF5 file"), (tmp_path, "read"), ("nowhere.h5", "read")):
        with pytest.raises(ConfigurationError, match=said):
            policy.read(str(name))
