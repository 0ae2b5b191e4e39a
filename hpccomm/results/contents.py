"""What a results file holds, and where, as its seal says it: written from HDF5, read without."""

import zlib
from collections.abc import Mapping
from typing import Any

import h5py

from hpccomm.files import groups, seal
from hpccomm.results import coding, layout
from hpccomm.results.coding import ROW_BYTES, SAMPLE, STATE_BYTES

GROUP = "policy"
"""The group of a run that is sealed with its facts: the table that ``hpccomm tune`` wrote."""


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
            "samples": _samples(layout.dataset(run, "samples")),
        }
        content[name] = stated(run) | places
        holes += measured(places)
    return {"runs": content}, holes


def stated(run: h5py.Group) -> dict[str, Any]:
    """Return what a run says of itself, as JSON."""
    found = {"facts": coding.facts(layout.read_info(run))}
    if GROUP in run:
        found[GROUP] = groups.dumped(layout.group(run, GROUP))
    return found


def _samples(stored: h5py.Dataset) -> dict[str, Any]:
    length, ranks = stored.shape
    found = {"length": length, "ranks": ranks}
    if stored.chunks is None:
        return found | {"at": stored.id.get_offset()}
    tall = stored.chunks[0]
    chunks = [_chunk(stored, (begin, 0)) for begin in range(0, length, tall)]
    return found | {"tall": tall, "chunks": chunks}


def _chunk(stored: h5py.Dataset, begin: tuple[int, int]) -> list[int]:
    """Return where a chunk is, its bytes, the filters that were skipped, and its CRC."""
    info = stored.id.get_chunk_info_by_coord(begin)
    crc = zlib.crc32(stored.id.read_direct_chunk(begin)[1])
    return [info.byte_offset, info.size, info.filter_mask, crc]


def measured(places: Mapping[str, Any]) -> list[seal.Hole]:
    """Return the bytes of rows, samples and state of a run."""
    at, slots = places["rows"]
    samples = places["samples"]
    if "at" in samples:
        size = samples["length"] * samples["ranks"] * SAMPLE.itemsize
        holes = [(samples["at"], samples["at"] + size)]
    else:
        holes = [(begin, begin + size) for begin, size, *_ in samples["chunks"]]
    return [
        (at, at + slots * ROW_BYTES),
        (places["state"], places["state"] + STATE_BYTES),
        *holes,
    ]
