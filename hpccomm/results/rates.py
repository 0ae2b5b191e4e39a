"""Rows of ``hpccomm perf memory`` and ``hpccomm perf copy`` as text.

Bandwidth counts the bytes that are read and written, as STREAM does (McCalpin, stream.c 5.10): a
copy within a memory and an update in place count twice, a sum of two arrays into a third one three
times. A cache's reads of an array that is only written are not counted. A copy over a link counts
once, in its own direction.

`hpccomm.tools.perf.links` prints it while it measures, and `hpccomm show` later.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np

from hpccomm.results import placement
from hpccomm.results.schema import Row, RunInfo
from hpccomm.results.table import figure

COUNTED = {
    "memory_copy": 2,
    "memory_add": 3,
    "memory_update": 2,
    "host_to_device": 1,
    "device_to_host": 1,
    "device_copy": 2,
    "device_to_device": 1,
}
"""The rates, and how often each counts its bytes."""

_LINE = "{:<16}  {:<34}  {:>11}  {:>10}  {:>7}  {:>6}  {:>7}  {}"
_HEADING = ("what", "where", "bytes", "us", "GB/s", "#wrong", "of peak", "path")

_LIMIT = """\
#
# An all_reduce of n ranks in shared memory reads and writes n arrays. Where these are larger than the
# caches, its busbw is at most (n-1)/n^2 of the best memory_update or memory_copy, {:.4g} GB/s:
#   {} GB/s"""
"""The memory's bound of an all-reduce, which reads and writes equally much."""

_RANKS = (2, 4, 8, 16, 32, 64)


def path_fact(what: str, where: str) -> str:
    """Return the name under which a run's facts of the machine hold the path of a copy, and its peak: ``NAME: 63 GB/s``.

    Parameters
    ----------
    what : str
        A name of `COUNTED`.
    where : str
        Such as ``GPU 0, pinned``, or ``GPU 0 to GPU 1, both ways``.
    """
    return f"path {'host to ' * ('host' in what)}{where.split(',')[0]}"


def are_rates(rows: Sequence[Row]) -> bool:
    """Whether rows are of memory or links, and not of collectives."""
    return bool(rows) and all(row.collective in COUNTED for row in rows)


def text(info: RunInfo, rows: Sequence[Row], samples: Callable[[int], np.ndarray | None]) -> str:
    """Return the rows of a run as a table.

    Parameters
    ----------
    info : RunInfo
        Facts of the run.
    rows : sequence of Row
        What was measured.
    samples : callable
        Gives the seconds of a row's repetitions, shape ``(repetitions, ranks)``, or None, by its index. From them each
        line names the slowest rank, if there are several nodes.
    """
    facts = [f"{name} {fact}" for name, fact in sorted(info.machine.items()) if name[:4] != "path"]
    versions = [f"{name}={version}" for name, version in sorted(info.versions.items())]
    lines = [f"# {', '.join(facts)}", f"# {' '.join(versions)}"]
    lines += placement.folded(info) if len(info.ranks) > 1 else []
    lines.append(f"# {_LINE.format(*_HEADING)}")
    for index, row in enumerate(rows):
        path = info.machine.get(path_fact(row.collective, row.algorithm), "")
        peak = re.search(r": (\S+) GB/s$", path)
        share = f"{row.busbw / float(peak[1]):.0%}" if peak else ""
        if info.nodes > 1 and (seconds := samples(index)) is not None:
            slowest = info.ranks[int(np.argmax(np.median(seconds, axis=0)))]
            path = f"{path} slowest: rank {slowest.rank} on {slowest.host}".strip()
        figures = f"{row.time:.1f}", figure(row.busbw, 7).strip(), row.wrong, share, path
        line = _LINE.format(row.collective, row.algorithm, row.bytes, *figures)
        lines.append(f"  {line}".rstrip())
    alike = ("memory_copy", "memory_update")
    best = max((row.busbw for row in rows if row.collective in alike), default=0.0)
    limits = (f"{n} ranks {best * (n - 1) / n**2:.3g}" for n in _RANKS)
    lines += _LIMIT.format(best, ", ".join(limits)).splitlines() if best else []
    return "".join(f"{line}\n" for line in lines)
