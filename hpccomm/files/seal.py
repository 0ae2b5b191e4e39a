"""The seal of a file: what it holds and where, twice in the file, so that no damage goes unnoticed.

A seal has a content, which is JSON, and a checksum over every byte of the file that never changes: all but
the holes, whose contents carry checksums of their own. One copy lies near the start of the file, in room
that was laid out for it, the other behind the file's own end. A program that changes the file leaves the
first as it is, and the checksum tells that it was there.

======  ======  =====================================================
bytes   type    meaning
======  ======  =====================================================
0-15            `MARK`
16-23   ``<q``  length of the body
24-39           BLAKE2b of the length and the body, 16 bytes
40-             body: JSON, compressed by zlib
======  ======  =====================================================

Behind the second copy stand its place in the file, as ``<q``, and `MARK` once more.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

MARK = b"\x93hpccomm seal\r\n\x1a"
"""Where a seal begins."""

SEARCHED = 1 << 16
"""The first copy begins within so many bytes from the start of the file."""

_LENGTH = struct.Struct("<q")
_HEAD = len(MARK) + _LENGTH.size + 16
_BLOCK = 1 << 20
_MOST_BODY = 64 << 20
_MOST_JSON = 256 << 20

Hole = tuple[int, int]
"""Bytes of the file that may change: from the first to before the second."""


@dataclass(frozen=True, slots=True)
class Seal:
    """A seal that was found whole.

    Attributes
    ----------
    content : mapping
        What the file holds, as its writer says.
    size : int
        Bytes of the file, without the second copy.
    structure : str
        Checksum of all of these but the holes.
    holes : tuple
        Bytes that it leaves out, in order.
    copies : int
        How many of the two copies are whole, to the last byte of their room.
    """

    content: Mapping[str, Any]
    size: int
    structure: str
    holes: tuple[Hole, ...]
    copies: int


def needed(content: Mapping[str, Any], holes: Iterable[Hole]) -> int:
    """Return the bytes of room that a first copy takes, never less than `write` uses."""
    # Instead of the checksum, which is not known yet, letters that compress as badly.
    digits = blake2b(repr(content).encode(), digest_size=16).hexdigest()
    return len(_encoded(content, 2**62, digits, holes)) + 256


def write(descriptor: int, content: Mapping[str, Any], holes: Sequence[Hole], room: Hole) -> None:
    """Seal a file: write both copies.

    Parameters
    ----------
    descriptor : int
        The file, complete, open for reading and writing.
    content : mapping
        What it holds: JSON.
    holes : sequence
        Bytes that may change from now on.
    room : Hole
        Where the first copy goes; it is a hole itself.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    size = os.fstat(descriptor).st_size
    left_out = sorted([*holes, room])
    copy = _encoded(content, size, _structure(descriptor, size, left_out), left_out)
    assert len(copy) <= room[1] - room[0]
    _write_all(descriptor, copy, room[0])
    _write_all(descriptor, copy + _LENGTH.pack(size) + MARK, size)


def find(descriptor: int) -> Seal | None:
    """Return the seal of a file, from the first copy that is whole; None if there is none.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    copies = [copy for copy in (_first(descriptor), _second(descriptor)) if copy is not None]
    if not copies:
        return None
    (content, size, structure, holes), _ = copies[0]
    clean = sum(clean for _, clean in copies)
    return Seal(content, size, structure, tuple((begin, end) for begin, end in holes), clean)


def unchanged(descriptor: int, seal: Seal) -> bool:
    """Say whether all that never changes in the file is as it was sealed.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    whole = os.fstat(descriptor).st_size >= seal.size
    return whole and _structure(descriptor, seal.size, seal.holes) == seal.structure


_Copy = tuple[list[Any], bool]
"""What a copy says, and whether nothing else stands where it has room."""


def _first(descriptor: int) -> _Copy | None:
    start = os.pread(descriptor, SEARCHED + len(MARK), 0)
    at = start.find(MARK)
    while at >= 0:
        body, end = _body(descriptor, at)
        # The start may hold what looks like a seal, such as another file's: this one knows its place.
        rooms = [hole for hole in body[3] if hole[0] == at] if body is not None else []
        if body is not None and rooms:
            return body, not os.pread(descriptor, rooms[0][1] - end, end).strip(b"\0")
        at = start.find(MARK, at + 1)
    return None


def _second(descriptor: int) -> _Copy | None:
    tail = _LENGTH.size + len(MARK)
    size = os.fstat(descriptor).st_size
    if size < tail:
        return None
    last = os.pread(descriptor, tail, size - tail)
    if last[_LENGTH.size :] != MARK:
        return None
    (at,) = _LENGTH.unpack_from(last)
    if not 0 <= at < size:
        return None
    body, end = _body(descriptor, at)
    return (body, end == size - tail) if body is not None and body[1] == at else None


def _encoded(content: Mapping[str, Any], size: int, structure: str, holes: Iterable[Hole]) -> bytes:
    body = zlib.compress(json.dumps([content, size, structure, list(holes)]).encode(), 1)
    length = _LENGTH.pack(len(body))
    return MARK + length + blake2b(length + body, digest_size=16).digest() + body


def _body(descriptor: int, at: int) -> tuple[list[Any] | None, int]:
    """Return what the copy at a place says, None if it is not whole, and where it ends."""
    head = os.pread(descriptor, _HEAD, at)
    if len(head) < _HEAD or not head.startswith(MARK):
        return None, at
    length, digest = head[len(MARK) :][: _LENGTH.size], head[len(MARK) + _LENGTH.size :]
    (size,) = _LENGTH.unpack(length)
    if not 0 < size <= _MOST_BODY:
        return None, at
    body = os.pread(descriptor, size, at + _HEAD)
    if blake2b(length + body, digest_size=16).digest() != digest:
        return None, at
    unpacked: list[Any] = json.loads(zlib.decompressobj().decompress(body, _MOST_JSON))
    return unpacked, at + _HEAD + size


def _structure(descriptor: int, size: int, holes: Iterable[Hole]) -> str:
    digest = blake2b(digest_size=16)
    for begin, end in _between(size, holes):
        for at in range(begin, end, _BLOCK):
            digest.update(os.pread(descriptor, min(_BLOCK, end - at), at))
    return digest.hexdigest()


def _between(size: int, holes: Iterable[Hole]) -> Iterator[Hole]:
    """Give the parts of a file that are in no hole; the holes are in order."""
    at = 0
    for begin, end in holes:
        if at < begin:
            yield at, begin
        at = max(at, end)
    if at < size:
        yield at, size


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, at)
        view, at = view[done:], at + done
