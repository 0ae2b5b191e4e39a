"""Missing, foreign or unreadable inputs: one line each, status 2, without waiting."""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import refused

from hpccomm.calls import policy
from hpccomm.errors import HpccommError
from hpccomm.schedules.cost import network

SETTING = "nodes = 1\nranks_per_node = 2\nreduce = 1e9\n[inner]\nlatency = 1e-6\nbandwidth = 1e9\n"


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


NAMED: dict[str, Callable[[Path], object] | bytes | Path] = {
    "a FIFO": os.mkfifo,
    "a socket": listening,
    "a directory": Path.mkdir,
    "a device": Path("/dev/zero"),
    "not readable": Path("/proc/self/mem"),  # its first byte is an input/output error
    "huge": huge,
    "not there": lambda _: None,
    "not UTF-8": SETTING.encode("utf-16"),
    "nested arrays": b"nodes = " + b"[" * 3000 + b"]" * 3000,
    "nested tables": b"nodes" + b".a" * 3000 + b" = 1",
    "long": b"nodes = '" + b"x" * 100_000 + b"'",
    "empty": b"",
}
"""What is named: what makes it, what stands in it, or where it is."""


@pytest.mark.parametrize("named", NAMED.values(), ids=NAMED)
def test_what_is_no_input_is_refused_in_a_line(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "input"
    if isinstance(named, bytes):
        path.write_bytes(named)
    elif isinstance(named, Path):
        path = named
    else:
        named(path)
    for words in (
        ("show", path),
        ("export", path, "--format", "csv"),
        ("simulate", "all_reduce", "--like", path),
        ("simulate", "all_reduce", "--cluster", path),
    ):
        err = refused(*words)
        assert (err.count("\n"), err[:16], str(path) in err) == (1, "hpccomm: error: ", True)
        assert len(err) < 1000
    for read in (policy.read, network.load):
        with pytest.raises(HpccommError, match=re.escape(str(path))):
            read(str(path))


def test_an_output_that_waits_for_a_reader_is_refused(tmp_path):
    os.mkfifo(path := tmp_path / "out.svg")
    err = refused("plot", "--schedule", "ring", "--output", path)
    assert "it is a FIFO, not a regular file" in err
