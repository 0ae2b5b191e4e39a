"""Logs as they lie in issue trackers and archives: each file of ``data`` gives what ``expected.toml`` says."""

import os
import random
import re
import tomllib
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import hypothesis.strategies as st
import pytest
from damage import called
from hypothesis import given

from hpccomm.errors import ResultsError, UsageError
from hpccomm.results import reader
from hpccomm.results.comparison import matching
from hpccomm.results.table import TIME_FORMAT
from hpccomm.tools.runs import import_
from hpccomm.tools.runs.logs.imported import ImportedRun, LogDefaults

from .test_import import call

Capture = pytest.CaptureFixture[str]
DATA = Path(__file__).parent / "data"
EXPECTED = tomllib.loads((DATA / "expected.toml").read_text())["log"]


WHEN = datetime.now().astimezone()
KNOWN = LogDefaults("the log", WHEN, "someone")
COLUMNS = {"bytes", "wrong", "iterations", "time", "backend", "dtype", "op", "root"}
"""What a table may have of its rows: a value of each, or one of all."""


def read(entry: dict) -> import_.ReadLog:
    words = entry.get("options", "").split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    ranks = int(given["--ranks"]) if "--ranks" in given else None
    known = replace(KNOWN, collective=given.get("--collective"), ranks=ranks)
    data = (DATA / entry["file"]).read_bytes() if "file" in entry else entry["text"].encode()
    for old, new in entry.get("replace", []):
        data = data.replace(old.encode(), new.encode())
    return import_.parse(data, known)


@pytest.mark.parametrize("entry", EXPECTED, ids=lambda entry: entry.get("file", "text"))
def test_a_log_gives_what_it_prints(entry: dict) -> None:
    if "refused" in entry:
        with pytest.raises(ResultsError, match=re.escape(entry["refused"])):
            read(entry)
        return
    log = read(entry)
    tables = entry["table"]
    found = [(run.info.ranks and run.rows[0].collective, len(run.info.ranks)) for run in log.runs]
    assert found == [(table["collective"], table["ranks"]) for table in tables]
    for run, table in zip(log.runs, tables, strict=True):
        assert run.status.startswith(table["status"])
        assert (run.status == "completed") == (table["status"] == "completed")
        for name in table.keys() & COLUMNS:
            values, due = [getattr(row, name) for row in run.rows], table[name]
            assert values == pytest.approx(due) if isinstance(due, list) else set(values) == {due}
        if "busbw" in table:
            rounded = zip([row.busbw for row in run.rows], table["busbw"], strict=True)
            assert [as_printed(*each) for each in rounded] == table["busbw"]
        stamp = datetime.fromtimestamp(run.rows[0].finished, WHEN.tzinfo).strftime(TIME_FORMAT)
        assert table.get("stamp", stamp) == stamp
        assert table.get("versions", run.info.versions) == run.info.versions
        places = table.get("in_place", [False, True] if "busbw" in table else None)
        assert places is None or sorted({row.in_place for row in run.rows}) == places
    for one, pattern in zip(log.left_out, entry.get("left_out", []), strict=True):
        assert pattern in f"{one.what}: {one.why}"
    notes = [note for run in log.runs for note in run.notes]
    for pattern in entry.get("notes", []):
        assert any(pattern in note for note in notes), notes
    assert bool(notes) == bool(entry.get("notes"))


def as_printed(value: float, text: str) -> str:
    """Return a figure with as many decimals as another one."""
    return f"{value:.{len(text.partition('.')[2])}f}"


def test_a_copy_of_a_log_is_no_other_launch(tmp_path: Path, capsys: Capture) -> None:
    log = DATA / "prefix_kubectl.txt"
    copies = [tmp_path / f"{number}.log" for number in range(7)]
    for number, copy in enumerate(copies):
        copy.write_bytes(log.read_bytes())
        os.utime(copy, (1e9 + number, 1e9 + number))
    once, apart = tmp_path / "once.h5", [tmp_path / f"{copy.stem}.h5" for copy in copies]
    assert call(*copies, DATA / "packed.txt.gz", "--output", once) == 0
    assert call(copies[0], "--output", once) == 0
    said = capsys.readouterr().out.splitlines()
    left_out = f"left out: the same measurement as run0001 of {once}"
    assert [left_out in line for line in said] == [False, *[True] * 8]
    assert len(reader.read(once)) == 1
    # In files of their own they are one launch, too.
    for copy, path in zip(copies, apart, strict=True):
        call(copy, "--output", path)
    found = matching.side(apart)
    assert len(found.runs) == 1
    assert len(found.left_out) == 6
    assert all(why.endswith(f"measurement as run0001 of {apart[0]}") for why in found.left_out)
    assert matching.on_both_sides(matching.side(apart[:1]), matching.side(apart[1:]))


def test_a_dry_run_says_what_would_become_of_each_table(tmp_path: Path, capsys: Capture) -> None:
    suite, three = DATA / "osu_5.3_suite.txt", DATA / "nccl_2.13_three_unnamed.txt"
    path, two = tmp_path / "runs.h5", tmp_path / "two.log"
    scatter = (DATA / "nccl_2.13_scatter.txt").read_text()
    two.write_text(scatter * 2)
    assert call(suite, "--ranks", 16, "--dry-run", "--output", path) == 0
    assert call(three, "--collective", "broadcast", "--dry-run") == 2
    said = capsys.readouterr().out.splitlines()
    assert not path.exists()
    assert sum("would be stored, completed" in line for line in said) == 7
    assert sum("has no counterpart in hpccomm" in line for line in said) == 5
    assert said[-1].startswith(f"{three}: line 45: 4 rows left out: contradicts the flags")
    # A log that has none does not hide what becomes of the others.
    none = tmp_path / "none.log"
    none.write_text("# Using devices\n")
    with pytest.raises(ResultsError, match=r"none\.log has no table.*; .*: line 1: .*; line 21: "):
        call(none, two, DATA / "packed.txt.gz", "--dry-run")
    assert "packed.txt.gz (gzip): all_reduce, 8 rows" in capsys.readouterr().out
    with pytest.raises(UsageError, match="--output is missing"):
        call(three)


RANKS = 264


def test_many_ranks_are_folded(tmp_path: Path) -> None:
    log, path = tmp_path / "many.log", tmp_path / "runs.h5"
    text = (DATA / "nccl_2.13_all_reduce.txt").read_text()
    begin = text.index("#  Rank  0")
    rank = "#  Rank {:4d} Group  0 Pid {:6d} on node-{:03d} device {:2d} [0x1b] NVIDIA H100 80GB HBM3\n"
    listed = "".join(rank.format(n, 4000 + n, n // 8, n % 8) for n in range(RANKS))
    row = "    67108864      16777216     float     sum      -1    900.0   74.57  148.57      0    900.0   74.57  148.57      0\n"
    head = text[begin:].splitlines(keepends=True)[16:20]
    log.write_text(text[:begin] + listed + "".join(head) + row)
    assert call(log, "--collective", "all_reduce", "--output", path) == 0
    (run,) = reader.read(path)
    assert len(run.info.ranks) == RANKS
    text = called("show", str(path))[1]
    before = text.split("67108864")[0].splitlines()
    assert len(before) < 40
    assert f"#  {RANKS} ranks on 33 nodes" in before
    assert "#  Ranks 0 to 7 on node-000: 8 x NVIDIA H100 80GB HBM3" in before
    # It can be imported again.
    (again,) = import_.parse(text.encode(), KNOWN).runs
    assert (len(again.info.ranks), again.rows) == (RANKS, list(run.rows))


# What launchers and loggers put before the lines of each program.
TAGS = (
    "2026-11-25T19:{minute:02d}:{second:02d}Z [{rank}] ",
    "[{since:.6f}] node-{rank} nccl[4711]: ",
    "worker-{rank}  | ",
    "node{rank} {rank}: ",
    "Nov 25 19:{minute:02d}:{second:02d} <{rank}> step {number}: ",
)


def tagged(form: str, rank: int, number: int) -> str:
    minute, second = 13 + number // 10, 6 * number % 60
    since = 1234.5 + number / 3
    return form.format(rank=rank, number=number, since=since, minute=minute, second=second)


def test_no_run_has_rows_of_two_programs() -> None:
    """Programs that print into each other line by line, in any order; tags before the lines tell them apart."""
    names = ("one_rank", "too_slow", "cycles")
    texts = [(DATA / f"nccl_2.19_{name}.txt").read_text() for name in names]
    alone = [figures(import_.parse(text.encode(), KNOWN).runs[0]) for text in texts]
    refused = 0
    for seed in range(200):
        chance = random.Random(seed)
        own = chance.sample(range(3), chance.choice((2, 3)))
        programs = {each: texts[each].splitlines() for each in own}
        burst, mixed = chance.choice((1, 4, 16)), []
        while any(programs.values()):
            rank = chance.choice([each for each in own if programs[each]])
            number = chance.randint(1, burst)
            mixed += [(rank, line) for line in programs[rank][:number]]
            del programs[rank][:number]
        form = chance.choice(TAGS)
        marked = [tagged(form, rank, at) + line for at, (rank, line) in enumerate(mixed)]
        runs = import_.parse("\n".join(marked).encode(), KNOWN).runs
        found = sorted(map(figures, runs), key=sorted)
        assert found == sorted((alone[each] for each in own), key=sorted), marked
        try:
            log = import_.parse("\n".join(line for _, line in mixed).encode(), KNOWN)
        except ResultsError:
            refused += 1
            continue
        for run in log.runs:
            assert any(figures(run) <= rows for rows in alone), mixed
    assert refused > 100


def figures(run: ImportedRun) -> set[tuple[object, ...]]:
    return {(row.bytes, row.in_place, row.time, row.algbw, row.busbw) for row in run.rows}


PLACES = st.integers(0, 4000)
CHANGES = st.tuples(PLACES, st.sampled_from([b"", b"9", b"x\n", b"\xff", b'"']))
FILES = st.sampled_from([entry["file"] for entry in EXPECTED if "file" in entry])


@given(FILES, st.lists(CHANGES, max_size=5), PLACES)
def test_a_damaged_log_is_read_or_refused(
    file: str, changes: list[tuple[int, bytes]], length: int
) -> None:
    data = (DATA / file).read_bytes()
    for at, piece in changes:
        data = data[:at] + piece + data[at + 1 :]
    try:
        log = import_.parse(data[:length], replace(KNOWN, ranks=2, collective="all_reduce"))
    except ResultsError:
        return
    assert all(run.rows for run in log.runs)
