"""A results file of each release is read and written to, as ``docs/reference/compatibility.rst`` promises.

``data/releases`` has the files, and what the release itself has exported of each: its ``make.sh`` says how.
"""

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from appending import add_run
from damage import output

from hpccomm.results import read, read_recordings

RELEASES = Path(__file__).with_name("data") / "releases"
NAMES = ["run0001", "run0002", "recording0001", "recording0002"]


def cells(exported: str) -> Iterator[dict[str, str]]:
    """Yield the lines of several tables by the names of their columns."""
    header: list[str] = []
    for line in csv.reader(exported.splitlines()):
        if line[0] in ("run", "recording"):
            header = line
        else:
            yield dict(zip(header, line, strict=True))


def assert_as_exported(path: Path, release: str) -> None:
    before = [*cells(gzip.decompress((RELEASES / f"{release}.csv.gz").read_bytes()).decode())]
    now = cells("".join(output("export", path, "--format", "csv", "--run", name) for name in NAMES))
    # Later releases may add columns.
    kept = [{name: new[name] for name in old} for old, new in zip(before, now, strict=True)]
    assert kept == before


@pytest.mark.parametrize("release", [path.name[:-6] for path in RELEASES.glob("*.h5.gz")])
def test_a_file_of_a_release_is_read_and_written_to(release: str, tmp_path: Path) -> None:
    path = tmp_path / "made.h5"
    path.write_bytes(gzip.decompress((RELEASES / f"{release}.h5.gz").read_bytes()))
    assert_as_exported(path, release)
    reduced, gathered = read(path)
    calls, training = read_recordings(path)
    assert {each.status for each in (reduced, gathered, calls, training)} == {"completed"}
    assert reduced.info.versions["hpccomm"] == calls.facts.versions["hpccomm"] == release
    assert reduced.info.arguments[1:5] == ("perf", "all_reduce", "-b", "1K")
    assert reduced.samples(0).shape == (5, 2)
    assert gathered.array("isolated", 0).shape[1:] == (2, 2)
    assert {each.name: each.ranks for each in calls.groups} == {"world": (0, 1), "reversed": (1, 0)}
    assert "program.py line 17" in {each.site for each in calls.signatures}
    assert training.facts.settings["op"] == "average"
    assert "program.py line 20" in output("advise", path)

    add_run(path)
    assert_as_exported(path, release)
    assert [run.name for run in read(path)] == ["run0001", "run0002", "run0003"]
