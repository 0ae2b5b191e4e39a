"""Memory of another process, mapped or through the kernel: two real processes."""

import ctypes
import errno
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hpccomm.errors import CommunicationError
from hpccomm.memory.shared import pages as libc
from hpccomm.memory.shared.heap import PeerSegments
from hpccomm.memory.shared.node import Offer, ProbeResult, agreed, offer, tried
from hpccomm.memory.shared.pages import PeerPages, RemoteMemory
from hpccomm.memory.views import ScratchBuffer

ELEMENTS = 300_000

CHILD = f"""
import json, os, sys
import numpy as np
from hpccomm.memory.shared.node import offer
from hpccomm.memory.shared.heap import process_memory

heap = process_memory().heap
plain = np.arange({ELEMENTS}, dtype=np.float32)
heap.empty(4096)
registered = heap.empty({ELEMENTS} * 4).view(np.float32)
registered[:] = -plain
segment = heap.where(registered.ctypes.data)
print(json.dumps([os.getpid(), plain.ctypes.data, segment.key,
                  registered.ctypes.data - segment.at, list(offer()[2:5]), offer()[1].hex()]))
sys.stdout.flush()
for line in sys.stdin:
    if line == "sums\\n":
        print(json.dumps([plain.sum(dtype=float), registered.sum(dtype=float)]))
    else:
        os.close(segment.key & 0xFFFFFFFF)  # as a program does that closes all it does not know
        print(os.open("/dev/null", os.O_RDONLY) == segment.key & 0xFFFFFFFF)
    sys.stdout.flush()
"""


@dataclass
class Other:
    """Another process with two arrays: 0, 1, 2, ... and 0, -1, -2, ..."""

    process: subprocess.Popen[str]
    pid: int
    at: int
    key: int
    offset: int
    offer: Offer

    def ask(self, what: str) -> object:
        print(what, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline().lower())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def other() -> Iterator[Other]:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        pid, at, key, offset, place, token = json.loads(process.stdout.readline())
        offered = Offer(pid, bytes.fromhex(token), *place, "")
        yield Other(process, pid, at, key, offset, offered)
        process.kill()


class Stingy:
    """A C library whose kernel copies a part of what it is asked for, and is interrupted by signals at times."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, function: str) -> Callable[..., int]:
        return partial(self.copies, function)

    def copies(self, function: str, pid: int, near: int, _n: int, far: int, *_: int) -> int:
        self.calls += 1
        if self.calls % 3 == 0:
            ctypes.set_errno(errno.EINTR)
            return -1
        for at in (near, far):
            end = libc.Vector.from_address(at)
            end.nbytes = min(end.nbytes, 4097)
        return getattr(libc.libc(), function)(pid, near, 1, far, 1, 0)


@pytest.mark.parametrize("library", [None, Stingy()], ids=["at once", "in parts"])
def test_pages_are_read_and_written_where_they_lie(other: Other, library: object) -> None:
    remote = RemoteMemory(other.pid, 1, library)
    pages = PeerPages(remote, ScratchBuffer(), other.at, ELEMENTS, np.dtype(np.float32))
    expected = np.arange(ELEMENTS, dtype=np.float32)
    into = np.empty(ELEMENTS, np.float32)
    pages.read(into)
    assert np.array_equal(into, expected)
    part = pages.part(slice(1000, 250_000))
    assert part.size == 249_000
    assert np.array_equal(part[500:200_000], expected[1500:201_000])
    assert np.array_equal(part.part(slice(7, 8))[0:1], [1007])
    part.part(slice(10, 200_010)).write(np.ones(200_000, np.float32))
    expected[1010:201_010] = 1
    pages.read(into)
    assert np.array_equal(into, expected)
    assert other.ask("sums")[0] == expected.sum(dtype=float)
    first = pages[0:1000]
    second = pages[5:8]
    assert np.array_equal(second, [5, 6, 7])
    assert np.array_equal(first[:3], second)  # one bounce for all
    assert pages[3:3].size == 0


def test_memory_that_is_not_there_is_an_error(other) -> None:
    page = libc.PAGE
    anywhere = PeerPages(RemoteMemory(other.pid, 3), ScratchBuffer(), page, 8, np.dtype(np.int64))
    with pytest.raises(CommunicationError, match="memory of rank 3 cannot be reached: Bad address"):
        anywhere[0:8]


def test_segments_are_mapped_once_and_stay_when_their_process_is_gone(other) -> None:
    segments = PeerSegments()
    mapped = segments.find(other.pid, other.key)
    data = mapped[other.offset : other.offset + 4 * ELEMENTS].view(np.float32)
    assert np.array_equal(data, -np.arange(ELEMENTS, dtype=np.float32))
    data[:] = 2
    assert other.ask("sums")[1] == 2 * ELEMENTS
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    assert segments.find(other.pid, other.key) is mapped
    other.end()
    assert (data == 2).all()
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors


def test_another_file_under_a_segments_number_is_not_mapped(other) -> None:
    assert other.ask("close") is True
    with pytest.raises(OSError, match="no longer a segment"):
        PeerSegments().find(other.pid, other.key)
    other.end()
    with pytest.raises(FileNotFoundError):
        PeerSegments().find(other.pid, other.key)


def test_the_probe_finds_what_is_offered_and_takes_no_process_for_another(other: Other) -> None:
    def given(**change: object) -> Offer:
        names = ("pid", "token", "key", "offset", "at", "problem")
        return Offer(**(dict(zip(names, other.offer, strict=True)) | change))

    assert tried({0: offer(), 1: other.offer}, 0) == ProbeResult("", "")
    assert tried({1: given(pid=-1)}, 1) == ProbeResult("", "")  # itself, it does not try
    for reason in tried({0: offer(), 1: given(token=b"x" * 16)}, 0):
        assert "another process" in reason
    other.end()
    mapped, plain = tried({0: offer(), 1: given(key=other.key | 99 << 32)}, 0)
    assert "rank 1 cannot be mapped" in mapped
    assert "rank 1 has ended" in plain
    fine = ProbeResult("", "")
    assert "process_vm_readv" in agreed([fine, fine])[2]
    mapped, plain, how = agreed([fine, ProbeResult("", "no"), ProbeResult("never", "never")])
    assert (mapped, plain) == ("on rank 2: never", "on rank 1: no")
    assert "on rank 1: no" in how
