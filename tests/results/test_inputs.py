"""Missing, foreign or unreadable inputs: one line each, status 2, without waiting."""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import called

from hpccomm.calls import policy
from hpccomm.errors import HpccommError
from hpccomm.schedules.cost import network

SETTING = "nodes = 1\nranks_per_node = 2\nreduce = 1e9\n[inner]\nlatency = 1e-6\nbandwidth = 1e9\n"


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def listening(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return path


def huge(path: Path) -> Path:
    path.touch()
    os.truncate(path, 1 << 40)
    return path


def written(content: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(content)
        return path

    return write


NAMED: dict[str, Callable[[Path], Path]] = {
    "a FIFO": fifo,
    "a socket": listening,
    "a directory": lambda path: path.parent,
    "a device": lambda _: Path("/dev/zero"),
    "not readable": lambda _: Path("/proc/self/mem"),  # its first byte is an input/output error
    "huge": huge,
    "not there": lambda path: path,
    "not UTF-8": written(SETTING.encode("utf-16")),
    "nested arrays": written(b"nodes = " + b"[" * 3000 + b"]" * 3000),
    "nested tables": written(b"nodes" + b".a" * 3000 + b" = 1"),
    "long": written(b"nodes = '" + b"x" * 100_000 + b"'"),
    "empty": written(b""),
}


@pytest.mark.parametrize("named", NAMED.values(), ids=NAMED)
def test_what_is_no_input_is_refused_in_a_line(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    path = str(named(tmp_path / "input"))
    for words in (
        ("show", path),
        ("export", path, "--format", "csv"),
        ("simulate", "all_reduce", "--like", path),
        ("simulate", "all_reduce", "--cluster", path),
    ):
        status, out, err = called(*words)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("hpccomm: error: ")
        assert path in err
        assert len(err) < 1000
    for read in (policy.read, network.load):
        with pytest.raises(HpccommError, match=re.escape(path)):
            read(path)


def test_an_output_that_waits_for_a_reader_is_refused(tmp_path):
    path = fifo(tmp_path / "out.svg")
    status, _, err = called("plot", "--schedule", "ring", "--output", path)
    assert (status, "it is a FIFO, not a regular file" in err) == (2, True)
