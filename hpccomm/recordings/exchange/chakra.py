"""Writes a recording as Chakra's execution traces, which simulators such as ASTRA-sim read.

Each rank has a file ``NAME.RANK.et``: messages of protocol buffers, each behind its length. The first is
``GlobalMetadata``, the others are nodes: a ``COMM_COLL_NODE`` for each collective, ``COMM_SEND_NODE`` and
``COMM_RECV_NODE`` for messages, and a ``COMP_NODE`` for the time between calls. A node depends on what the
program waited for before. ``NAME.groups.json`` has the ranks of each communicator, as ASTRA-sim takes them.

The schema is ``et_def.proto`` of MLCommons Chakra 1.0. Six kinds of values are written, so this module encodes them
itself, as "Encoding" of the documentation of protocol buffers says.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpccomm.files.refusals import os_errors_as
from hpccomm.results.lateness import span
from hpccomm.results.recording import STEP, CallSignature, Recording

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
"""Values of ``NodeType``."""

_NAMES = "all_reduce reduce all_gather gather scatter broadcast all_to_all reduce_scatter"

COLLECTIVES = {**{name: at for at, name in enumerate(_NAMES.split())}, "barrier": 9}
"""Values of ``CollectiveCommType``."""

Comm = tuple[int, list[bytes]]
"""A node's type and attributes."""


def write(recording: Recording, name: Path) -> list[str]:
    """Write a file for each rank, and one of communicators; return notes for the user.

    Parameters
    ----------
    recording : Recording
        The recording.
    name : Path
        What the names of the files begin with.

    Raises
    ------
    ResultsError
        If one cannot be written, or is there.
    """
    kinds = [list(_kinds(recording, each)) for each in recording.signatures]
    for rank in range(recording.ranks):
        path = name.with_name(f"{name.name}.{rank}.et")
        with os_errors_as(path, "write"), path.open("xb") as file:
            for message in _messages(recording, rank, kinds):
                file.write(_varint(len(message)) + message)
    path = name.with_name(f"{name.name}.groups.json")
    ranks = {str(at): list(each.ranks) for at, each in enumerate(recording.groups)}
    with os_errors_as(path, "write"), path.open("x", encoding="ascii") as text:
        json.dump(ranks, text)
    lacking = {
        each.operation
        for each, kind in zip(recording.signatures, kinds, strict=True)
        if (COMPUTE, []) in kind
    }
    what = ", ".join(sorted(lacking))
    return [f"Chakra has no {what}, written as computation of that time"] if lacking else []


def _messages(recording: Recording, rank: int, kinds: list[list[Comm]]) -> Iterator[bytes]:
    """Yield the messages of a rank's file.

    The program goes on after a call that blocks it, and where it has waited for one that does not. What is shorter
    than a microsecond belongs to the next computation.
    """
    yield _text(1, "1.0.0") + _bytes(2, _attribute("rank", 7, rank))
    calls, first = recording.calls, span(recording)[0]
    of_rank = calls.of_rank(rank)
    names = ("signature", "begin", "end", "asked", "waited")
    rows = list(zip(*(calls[each][of_rank].tolist() for each in names), strict=True))
    moments = [(row[1], False, at) for at, row in enumerate(rows)]
    moments += [(asked, True, at) for at, (*_, asked, waited) in enumerate(rows) if asked]
    before: list[int] = []
    now, number = first, 0
    nodes: dict[int, list[int]] = {}
    for moment, waits, at in sorted(moments):
        signature, begin, end, asked, waited = rows[at]
        what = recording.signatures[signature]
        if moment - now >= 1000:
            yield _node(number, "compute", COMPUTE, before, (now - first, moment - now), [])
            before, number, now = [number], number + 1, moment
        if waits:
            before, now = before + nodes.pop(at, []), max(now, asked + waited)
            continue
        nodes[at] = []
        for kind, attributes in kinds[signature]:
            times = begin - first, end - begin
            yield _node(number, what.operation, kind, before, times, attributes)
            nodes[at].append(number)
            number += 1
        if what.blocks and nodes[at]:
            before, now = nodes[at], max(now, end)


def _kinds(recording: Recording, signature: CallSignature) -> Iterator[Comm]:
    """Yield the nodes of a call: of a batch, one for each of its calls and each end of a message."""
    if signature.operation == STEP:
        return
    ranks = recording.groups[signature.group].ranks
    group = _attribute("pg_name", 29, str(signature.group))
    parts: Sequence[Mapping[str, Any]] = signature.values.get("calls", (signature.values,))
    for each in parts:
        size = _attribute("comm_size", 9, each.get("nbytes", signature.nbytes // len(parts)))
        name = each.get("operation", signature.operation)
        known = COLLECTIVES.get(name.removesuffix("_v"))
        if known is not None:
            root = each.get("root")
            own = [] if root is None else [_attribute("root", 7, ranks[root])]
            yield COLLECTIVE, [_attribute("comm_type", 9, known), size, group, *own]
        for way, kind in (("dst", SEND), ("src", RECEIVE)):
            if each.get(way) is not None:
                peer = _attribute(f"comm_{way}", 7, ranks[each[way]])
                yield kind, [size, peer, _attribute("comm_tag", 7, each.get("tag") or 0), group]
                known = kind
        if known is None:
            yield COMPUTE, []


def _node(
    number: int, name: str, kind: int, before: list[int], times: tuple[int, int], own: list[bytes]
) -> bytes:
    """Return a node by when it begins and how long it takes, in ns."""
    packed = b"".join(map(_varint, before))
    fields = [_integer(1, number), _text(2, name), _integer(3, kind)]
    fields += [_bytes(5, packed)] if packed else []
    fields += [_integer(field, time // 1000) for field, time in zip((6, 7), times, strict=True)]
    fields += [_bytes(10, each) for each in (_attribute("is_cpu_op", 27, 0), *own)]
    return b"".join(fields)


def _attribute(name: str, field: int, value: int | str) -> bytes:
    """Return an ``AttributeProto`` whose value is in a field."""
    own = _text(field, value) if isinstance(value, str) else _integer(field, value)
    return _text(1, name) + own


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value & (1 << 64) - 1)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Return an integer in groups of seven bits, the lowest first; all but the last have the eighth bit."""
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes((*groups, value))
