"""What a results file holds, and where, as its seal says it: written from HDF5, read without."""

import zlib
from collections.abc import Mapping
from typing import Any

import h5py

from hpccomm.files import groups, seal
from hpccomm.results import coding, layout
from hpccomm.results.coding import ROW_BYTES, SAMPLE, STATE_BYTES, TIMING_BYTES

GROUPS = ("policy", "pairs")
"""Groups of a run that are sealed with its facts: what ``hpccomm tune`` and ``hpccomm perf pairs`` found."""


def described(
    runs: Mapping[str, h5py.Group],
) -> tuple[dict[str, Any], list[seal.Hole]]:
    """Return the content for the seal of a file with these runs, and the bytes that their measurements take.

    The file is complete and flushed.
    """
    content = {}
    holes: list[seal.Hole] = []
    for name, run in runs.items():
        rows, state = layout.dataset(run, "rows"), layout.dataset(run, "state")
        places = {
            "rows": [rows.id.get_offset() or 0, len(rows)],
            "state": state.id.get_offset(),
            "samples": _numbers(layout.dataset(run, "samples")),
        }
        if "timings" in run:  # runs of before there were timings lack them
            timings = layout.dataset(run, "timings")
            places["timings"] = [timings.id.get_offset() or 0, len(timings)]
            places["isolated"] = _numbers(layout.dataset(run, "isolated"))
        content[name] = stated(run) | places
        holes += measured(places)
    return {"runs": content}, holes


def stated(run: h5py.Group) -> dict[str, Any]:
    """Return what a run says of itself, as JSON."""
    found = {"facts": coding.facts(layout.read_info(run))}
    for name in GROUPS:
        if name in run:
            found[name] = groups.dumped(layout.group(run, name))
    return found


def _numbers(stored: h5py.Dataset) -> dict[str, Any]:
    length, ranks, *each = stored.shape
    found = {"length": length, "ranks": ranks}
    if each:
        (found["each"],) = each  # numbers of a rank in a repetition; without it, one
    if stored.chunks is None:
        return found | {"at": stored.id.get_offset() or 0}
    tall = stored.chunks[0]
    chunks = [_chunk(stored, (begin, 0, *(0 for _ in each))) for begin in range(0, length, tall)]
    return found | {"tall": tall, "chunks": chunks}


def _chunk(stored: h5py.Dataset, begin: tuple[int, ...]) -> list[int]:
    """Return where a chunk is, its bytes, the filters that were skipped, and its CRC."""
    info = stored.id.get_chunk_info_by_coord(begin)
    crc = zlib.crc32(stored.id.read_direct_chunk(begin)[1])
    return [info.byte_offset, info.size, info.filter_mask, crc]


def measured(places: Mapping[str, Any]) -> list[seal.Hole]:
    """Return the bytes of what of a run carries checksums of its own: rows, timings, samples, state."""
    holes = [(places["state"], places["state"] + STATE_BYTES)]
    for name, size in (("rows", ROW_BYTES), ("timings", TIMING_BYTES)):
        if name in places:
            at, slots = places[name]
            holes.append((at, at + slots * size))
    for numbers in (places["samples"], places.get("isolated")):
        if numbers is not None:
            holes += _holes(numbers)
    return holes


def _holes(numbers: Mapping[str, Any]) -> list[seal.Hole]:
    if "at" not in numbers:
        return [(begin, begin + size) for begin, size, *_ in numbers["chunks"]]
    size = numbers["length"] * numbers["ranks"] * numbers.get("each", 1) * SAMPLE.itemsize
    return [(numbers["at"], numbers["at"] + size)]
