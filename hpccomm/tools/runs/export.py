"""Write a stored run in another format: nccl-tests' JSON (version 3), CSV, or a file for --expect.

A logged training is written as CSV with a line a step. A recorded program is written as CSV with a line a
call, or as a timeline for Perfetto (ui.perfetto.dev, chrome://tracing). Damaged parts are left out and named
on standard error, and the exit status is 2.

Examples
--------
  hpccomm export run.h5 --format json --output run.json
  hpccomm export run.h5 --format csv --run 1 > run.csv
  hpccomm export good.h5 --format expect --output expected.toml     for other runs' --expect
  hpccomm export t.h5 --format perfetto --output t.json.gz
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import numpy as np

from hpccomm.errors import ResultsError, UsageError
from hpccomm.results import exports, pairs, recording_text
from hpccomm.results.expectations import written
from hpccomm.results.files import os_errors_as
from hpccomm.results.reader import Run, WholeSamples, choose
from hpccomm.results.recording import (
    DEVICE,
    CallSignature,
    CallWaits,
    Indices,
    Recording,
    span,
    waits,
)
from hpccomm.results.timings import typical
from hpccomm.tools import flags, output
from hpccomm.tools.flags import RUN
from hpccomm.tools.programs.steps import steps

# A recording as a timeline: Chrome's trace event format, which Perfetto, Chrome and Speedscope read.
#
# Each rank is a process, with a number greater by 1, since 0 is the kernel's. Its threads are tracks: the steps; the
# calls that block the program, the waits for asynchronous calls, and in both the part before the awaited rank arrived;
# the asynchronous calls; and calls on streams. An arrow leads from each send to its receive, and from an arrival to the
# call that waited for it.
#
# The format: "Trace Event Format", by Nat Duca and Dan Sinclair. Times are in microseconds with three decimals, and
# begin at the first call: Perfetto keeps nanoseconds.

STEPS, CALLS, ASYNCHRONOUS, STREAMS = 1, 1 << 20, 2 << 20, 3 << 20
"""The first thread of each kind of track. Calls that overlap are on the next ones."""

_TITLES = {CALLS: "calls", ASYNCHRONOUS: "asynchronous calls", STREAMS: "calls on streams"}

_COLUMNS = ("signature", "number", "begin", "end", "asked", "waited", "stream", "failed")


def write(recording: Recording, path: Path) -> None:
    """Write a recording to a new file, packed by gzip if its name ends in ``.gz``.

    Raises
    ------
    ResultsError
        If it cannot be written, or is there.
    """
    with os_errors_as(path, "write"), _opened(path) as text:
        text.write('{"displayTimeUnit": "ns", "traceEvents": [')
        for number, event in enumerate(_events(recording)):
            text.write(f"{',' if number else ''}\n{event}")
        text.write("\n]}\n")


def _opened(path: Path) -> TextIO:
    if path.suffix != ".gz":
        return path.open("x", encoding="ascii")
    # A higher level would make the file a third smaller, for more work.
    return gzip.open(path, "xt", compresslevel=1, encoding="ascii")


def _events(recording: Recording) -> Iterator[str]:
    waiting = waits(recording)
    blocks = recording.of_signature("blocks")
    on_device = recording.of_signature("mode") == DEVICE
    kinds = np.where(blocks, CALLS, np.where(on_device, STREAMS, ASYNCHRONOUS))
    kinds[recording.of_signature("marks")] = -1
    calls = recording.calls
    # Where the program is blocked: by the call itself, or when it waits for it.
    since = np.where(blocks, calls["begin"], calls["asked"])
    until = np.where(blocks, calls["end"], since + calls["waited"])
    threads, hosts = kinds.copy(), np.where((calls["waited"] > 0) | blocks, CALLS, -1)
    hosts[kinds < 0] = -1
    bounds = steps(recording, waiting.collectives).bounds
    for rank, host in enumerate(recording.facts.hosts):
        of_rank = calls.of_rank(rank)
        for kind in (ASYNCHRONOUS, STREAMS):
            _add_lanes(threads[of_rank], kind, calls["begin"][of_rank], calls["end"][of_rank])
        _add_lanes(hosts[of_rank], CALLS, since[of_rank], until[of_rank])
        threads[of_rank] = np.where(blocks[of_rank], hosts[of_rank], threads[of_rank])
        yield from _of_rank(recording, waiting, rank, threads, hosts, bounds)
        yield _named("process_name", rank, STEPS, f"rank {rank}{f' on {host}' if host else ''}")
    yield from _flows(recording, waiting, threads)


def _add_lanes(threads: Indices, kind: int, begin: Indices, end: Indices) -> None:
    """Add a lane to the thread of each call of a kind: slices of one thread do not overlap."""
    chosen = np.flatnonzero(threads == kind)
    chosen = chosen[np.argsort(begin[chosen], kind="stable")]
    ends: list[int] = []
    columns = (each.tolist() for each in (chosen, begin[chosen], end[chosen]))
    for call, start, stop in zip(*columns, strict=True):
        lane = next((at for at, each in enumerate(ends) if each <= start), len(ends))
        ends[lane : lane + 1] = [stop]
        threads[call] += lane


def _of_rank(
    recording: Recording,
    waiting: CallWaits,
    rank: int,
    threads: Indices,
    hosts: Indices,
    bounds: Indices,
) -> Iterator[str]:
    """Yield the events of a rank."""
    calls, of_rank, first = recording.calls, recording.calls.of_rank(rank), span(recording)[0]
    for number, (begin, end) in enumerate(pairwise((bounds[:, rank] - first).tolist())):
        yield _slice("step", rank, STEPS, begin, end, f"step {number}", "")
    heads = [_head(recording, each) for each in recording.signatures]
    columns = [
        each[of_rank].tolist()
        for each in (
            *map(calls.columns.__getitem__, _COLUMNS),
            *(threads, hosts, waiting.since, waiting.blocked, waiting.awaited, waiting.wait),
        )
    ]
    ranks = calls.ranks()
    for signature, number, begin, end, asked, waited, stream, failed, *place in zip(
        *columns, strict=True
    ):
        thread, host, since, blocked, awaited, wait = place
        if thread < 0:
            continue
        name = recording.signatures[signature].operation
        args = f'{heads[signature]}"number": {number}, "waited_ns": {waited}'
        args += f', "stream": {stream}, "failed": {failed}'
        yield _slice("call", rank, thread, begin - first, end - first, name, args)
        if 0 < wait < end - begin:
            arrived = begin + wait - first
            yield _slice("transfer", rank, thread, arrived, end - first, "transfer", "")
        if host not in (thread, -1):
            start = asked - first
            yield _slice("wait", rank, host, start, start + waited, f"wait for {name}", args)
        if blocked:
            late = f"rank {ranks[awaited]} is late"
            yield _slice("late", rank, host, since - first, since - first + blocked, late, "")
    yield _named("thread_name", rank, STEPS, "steps")
    for thread in np.unique([threads[of_rank], hosts[of_rank]]).tolist():
        if thread >= 0:
            lane = thread % CALLS
            title = _TITLES[thread - lane] + (f" {lane + 1}" if lane else "")
            yield _named("thread_name", rank, thread, title)


def _flows(recording: Recording, waiting: CallWaits, threads: Indices) -> Iterator[str]:
    """Yield arrows between slices."""
    matched, first = waiting.messages, span(recording)[0]
    late = np.flatnonzero(waiting.awaited != np.arange(len(threads)))
    late = late[recording.calls["number"][late] > 0]
    ranks, begin, end = recording.calls.ranks(), recording.calls["begin"], recording.calls["end"]
    number = 0
    for name, froms, tos in (
        ("message", matched.sends, matched.receives),
        ("arrival", waiting.awaited[late], late),
    ):
        # Perfetto does not keep the order of equal times. An arrow ends at the innermost slice, and leads from the
        # slice that began first: so it ends at the transfer.
        starts = np.minimum(begin[froms] + 1, end[froms])
        stops = np.maximum(np.clip(starts, begin[tos], end[tos]), starts + 1)
        columns = (froms.tolist(), starts.tolist(), tos.tolist(), stops.tolist())
        for here, start, to, stop in zip(*columns, strict=True):
            number += 1
            for what, call, when in (("s", here, start), ("f", to, stop)):
                yield (
                    f'{{"ph": "{what}", "bp": "e", "cat": "{name}", "name": "{name}", "id": {number}, '
                    f'"pid": {ranks[call] + 1}, "tid": {threads[call]}, "ts": {_micro(when - first)}}}'
                )


def _head(recording: Recording, signature: CallSignature) -> str:
    """Return what the calls of a signature have in common, as members of an object of JSON."""
    facts = {"bytes": signature.nbytes, "mode": signature.mode, "site": signature.site}
    if signature.group >= 0:
        facts["communicator"] = recording.groups[signature.group].name
    facts |= {name: value for name, value in signature.values.items() if value is not None}
    return json.dumps(facts)[1:-1] + ", "


def _slice(
    category: str, rank: int, thread: int, begin: int, end: int, name: str, args: str
) -> str:
    return (
        f'{{"ph": "X", "cat": "{category}", "pid": {rank + 1}, "tid": {thread}, "ts": {_micro(begin)}, '
        f'"dur": {_micro(end - begin)}, "name": {json.dumps(name)}, "args": {{{args}}}}}'
    )


def _named(what: str, rank: int, thread: int, name: str) -> str:
    return json.dumps(
        {"ph": "M", "pid": rank + 1, "tid": thread, "name": what, "args": {"name": name}}
    )


def _micro(ns: int) -> str:
    """Return nanoseconds as microseconds, exactly."""
    return f"{'-' if ns < 0 else ''}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


def _json(run: Run, samples: WholeSamples) -> str:
    errors = [] if run.status == "completed" else [run.status]
    errors += run.damage
    document = exports.document(
        run.info, run.rows, samples, ended=run.ended, errors=errors, whole=not run.damage
    )
    document["errors"] += samples.damage()
    return json.dumps(document, indent=1) + "\n"


def _csv(run: Run, samples: WholeSamples) -> str:
    lines = [
        exports.line(run.name, run.info, row, samples(index), run.variant(index))
        for index, row in enumerate(run.rows)
    ]
    return exports.heading() + "".join(lines)


def _expect(run: Run, _samples: WholeSamples) -> str:
    return written(run.info, map(typical, run.rows, run.timings), run.others.line)


def _refusal(chosen: Run | Recording, name: str) -> str:
    """Return why a format cannot hold a run or a recording, and what to do; empty if it can."""
    place = f"which --format {name} has no place for; take --format csv"
    if isinstance(chosen, Recording):
        if name not in ("csv", "perfetto"):
            return f"is a recording, {place} or perfetto"
        empty = name == "perfetto" and not chosen.calls.count
        return "has no calls; take --format csv, or name another one" if empty else ""
    if name == "perfetto":
        return "is not a recording, and --format perfetto writes calls; take another format"
    if pairs.ENTRY in chosen.entries:
        return (
            "is of pairs of ranks, which no format has a place for; hpccomm show prints it, and hpccomm perf pairs "
            "--json writes its figures"
        )
    if name != "csv" and len(chosen.by_variant()) > 1:
        return f"has two variants, {place}, or name another run"
    if name == "expect" and not chosen.rows:
        return f"has no rows, {place}, or name another run"
    return ""


_FORMATS = {"csv": _csv, "expect": _expect, "json": _json}


_OWN = flags.table(__package__, file="export.toml")

FLAGS = (*_OWN["file"], RUN, *_OWN["output"])


def run(args: argparse.Namespace) -> int:
    """Write the run; return the exit status."""
    examined, status = output.read_file(args.file)
    chosen = choose(examined.stored, args.run)
    if refusal := _refusal(chosen, args.format):
        raise ResultsError(f"{chosen.name} {refusal}")
    if isinstance(chosen, Recording):
        if args.format == "perfetto":
            if args.output is None:
                raise UsageError("--format perfetto writes a file; give --output PATH")
            with output.watched(f"exporting {chosen.name}"):
                write(chosen, args.output)
            return status
        text = recording_text.csv_text(chosen)
    else:
        with output.watched(f"exporting {chosen.name}", len(chosen.rows)) as progress:
            samples = WholeSamples(chosen, progress)
            text = _FORMATS[args.format](chosen, samples)
        status = output.damaged(samples.damage(), args.file) or status
    output.write_file(args.output, text, new=True)
    return status
