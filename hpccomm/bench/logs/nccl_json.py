"""nccl-tests' JSON, versions 2 and 3, which ``-J`` of its programs and of `hpccomm perf` writes."""

from dataclasses import fields, replace
from datetime import datetime
from itertools import groupby
from typing import Any

import numpy as np

from hpccomm.bench.logs.figures import PrintedRow, exact
from hpccomm.bench.logs.imported import (
    COMPLETED,
    CUT,
    SLOW,
    Found,
    ImportedRun,
    LeftOutTable,
    Told,
    collective_of,
    group_sizes,
    status_of,
    unknown_ranks,
)
from hpccomm.bench.logs.judged import Unfit, judged, stored
from hpccomm.errors import ResultsError
from hpccomm.results.fingerprint import UNKNOWN_LAUNCHER
from hpccomm.results.schema import (
    UNCHECKED,
    Config,
    RankInfo,
    Row,
    RunInfo,
    recorded_environment,
    recorded_slurm,
)
from hpccomm.results.table import TIME_FORMAT

VERSIONS = (2, 3)

_SETTINGS = {each.name for each in fields(Config)}

Block = tuple[str, str, str]
"""Collective, backend and algorithm; hpccomm writes them, nccl-tests mostly nothing."""


def parse(document: dict[str, Any], told: Told, line: int) -> list[Found]:
    """Return what becomes of a document.

    Raises
    ------
    ResultsError
        If it is of another version.
    ValueError, LookupError, TypeError, AttributeError, OverflowError
        If it is no such document.
    """
    if document["version"] not in VERSIONS:
        raise ResultsError(
            f"{told.name} is nccl-tests' JSON of version {document['version']}; versions "
            f"{' and '.join(map(str, VERSIONS))} can be read"
        )
    settings = dict(document["config"])
    named = tuple(map(_rank, settings.pop("devices", document.get("devices", []))))
    # Without MPI, or with several devices a process, only the first of each process is named.
    share = _plain(settings.get("nthreads", 1)) * _plain(settings.get("ngpus", 1))
    sizes = group_sizes(named)
    listed = list(dict.fromkeys([*(size * share for size in sizes), *sizes]))
    run = ImportedRun(_info(document, told, named), [], [], line=line)
    found: list[Found] = []
    numbers: list[int] = []
    results = [(_block(each, document), each) for each in document["results"]]
    for block, members in groupby(results, key=lambda each: each[0]):
        part = dict(enumerate((each for _, each in members), 1))
        measured = [row for number, each in part.items() for row in _halves(each, number)]
        if not measured:
            continue
        try:
            judgement = judged(
                measured,
                told,
                name=block[0],
                listed=listed,
                timed="cpu_time" not in (part[1].get("in_place") or part[1]["out_of_place"]),
                counted=len(_words(part[1])) != 3,
            )
        except Unfit as error:
            found.append(LeftOutTable(line, f"{len(measured)} rows", str(error)))
            continue
        run.notes += judgement.notes
        numbers.append(judgement.kind.ranks)
        kept = stored(judgement, backend=block[1], algorithm=block[2], iterations=0, timed=False)
        for row, source in zip(kept, judgement.rows, strict=True):
            each = part[source.line]
            times = int(each.get("actual_iterations", document["config"].get("iterations", 0)))
            run.rows.append(replace(row, iterations=times))
            place = "in_place" if row.in_place else "out_of_place"
            times_us = each.get(f"{place}_per_iter")
            ranks = _ranks(named, judgement.kind.ranks, share)
            run.samples.append(_samples(times_us, len(ranks)))
    if not run.rows:
        return found or [LeftOutTable(line, "a document", "has no rows")]
    run.info = replace(
        run.info, config=_config(settings, run.rows), ranks=_ranks(named, numbers[0], share)
    )
    if (ended := document.get("end_time")) is not None:
        run.ended = datetime.strptime(ended, TIME_FORMAT).astimezone()
    run.status = _status(document, run)
    return [run, *found]


def _info(document: dict[str, Any], told: Told, named: tuple[RankInfo, ...]) -> RunInfo:
    environment = dict(each.split("=", 1) for each in document.get("env", []) if "=" in each)
    version = document.get("nccl_version")
    return RunInfo(
        started=datetime.strptime(document["start_time"], TIME_FORMAT).astimezone(),
        user=told.user,
        launcher=UNKNOWN_LAUNCHER,
        arguments=tuple(map(str, document.get("args", []))),
        skipped=(),
        config=_config({}, []),
        ranks=named or unknown_ranks(1),
        versions={} if not version else {"nccl": _version(int(version))},
        environment=recorded_environment(environment),
        slurm=recorded_slurm(environment),
    )


def _status(document: dict[str, Any], run: ImportedRun) -> str:
    bad = status_of(run.rows, int((document.get("out_of_bounds") or {}).get("count") or 0))
    if bad != COMPLETED:
        return bad
    if errors := [each for each in document.get("errors") or [] if each]:
        return f"failed: {errors[0]}"
    if run.ended is None:
        return CUT
    judged_slow = str((document.get("average_bus_bandwidth") or {}).get("okay")).lower() == "false"
    return SLOW if judged_slow else COMPLETED


def _ranks(named: tuple[RankInfo, ...], number: int, share: int) -> tuple[RankInfo, ...]:
    """Return all ranks, where a group has so many: those of a process have devices in sequence, the first is named."""
    sizes = group_sizes(named)
    if number not in [size * share for size in sizes]:
        share = 1 if number in sizes else next((number // n for n in sizes if not number % n), 0)
    if not share:
        return unknown_ranks(number)
    hosts = list(dict.fromkeys(each.host for each in named))
    return tuple(
        replace(
            each,
            rank=each.rank + place,
            node=hosts.index(each.host),
            device=each.device + place if each.device >= 0 else each.device,
            device_hex=each.device_hex if not place else "",
        )
        for each in named
        for place in range(share)
    )


def _halves(result: dict[str, Any], number: int) -> list[PrintedRow]:
    """Return the rows of a result; their line is its number."""
    rows = []
    for place in ("out_of_place", "in_place"):
        half = result.get(place)
        if half is None:
            continue
        wrong = half.get("nwrong")
        time, algbw, busbw = (
            exact(float(_either(half, *names)))
            for names in (("time", "cpu_time"), ("alg_bw", "algbw"), ("bus_bw", "busbw"))
        )
        rows.append(
            PrintedRow(
                line=number,
                dtype=str(result["type"]),
                op=str(result.get("redop") or ""),
                root=int(result.get("root", -1)),
                size=int(result["size"]),
                count=int(result["count"]),
                in_place=place == "in_place",
                time=time,
                algbw=algbw,
                busbw=busbw,
                wrong=UNCHECKED if wrong is None else int(wrong),
            )
        )
    return rows


def _words(result: dict[str, Any]) -> list[str]:
    return str(result.get("experiment_name") or "").split()


def _block(result: dict[str, Any], document: dict[str, Any]) -> Block:
    words = _words(result)
    if len(words) == 3:
        return words[0], words[1], words[2]
    program = str((document.get("args") or [""])[0])
    return (collective_of(program) if "_perf" in program else ""), "nccl", "auto"


def _version(code: int) -> str:
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def _rank(device: dict[str, Any]) -> RankInfo:
    return RankInfo(
        rank=int(device["rank"]),
        group=int(device.get("group", 0)),
        host=str(device["hostname"]),
        node=0,
        pid=int(device["pid"]),
        cores="",
        device=int(device["device"]),
        device_hex=str(device.get("device_hex", "")),
        device_info=str(device.get("device_info", "")),
        driver="",
    )


def _config(settings: dict[str, Any], rows: list[Row]) -> Config:
    sizes = [row.bytes for row in rows] or [0]
    values: dict[str, Any] = {
        "minimum_bytes": min(sizes),
        "maximum_bytes": max(sizes),
        "step_factor": 0,
        "step_bytes": 0,
        "iterations": 0,
        "warmup_iters": 0,
    } | {name: _plain(value) for name, value in settings.items() if name in _SETTINGS}
    for name in ("per_iter_timing", "parallel_init"):
        values[name] = bool(values.get(name, False))
    return Config(**values)


def _plain(value: Any) -> int:
    """Return a number; nccl-tests writes truth values as text."""
    return int({"true": 1, "false": 0}.get(value, value))


def _either(half: dict[str, Any], *names: str) -> Any:
    """Return the value of the first of these keys that is there; versions spell it in two ways."""
    return half[next((name for name in names if name in half), names[0])]


def _samples(repetitions: dict[str, Any] | None, ranks: int) -> np.ndarray | None:
    """Return the seconds of repetitions, shape ``(repetitions, ranks)``.

    Of a process with several ranks, and where only the slowest process is told, all have the time of the slowest.
    """
    if repetitions is None:
        return None
    slowest = np.array(repetitions["times_us"], float)[:, None] * 1e-6
    processes = repetitions.get("per_process_max_times_us")
    if processes is None:
        return np.repeat(slowest, ranks, axis=1)
    times = np.array(processes, float).T * 1e-6
    if not len(times) or ranks % times.shape[1]:
        return np.repeat(slowest, ranks, axis=1)
    return np.repeat(times, ranks // times.shape[1], axis=1)
