"""nccl-tests' JSON, versions 2 and 3, which ``-J`` of its programs and of `hpccomm perf` writes."""

import json
from dataclasses import fields
from datetime import datetime
from typing import Any

import numpy as np

from hpccomm.bench.logs.imported import (
    CUT,
    LIMIT,
    ImportedRun,
    Told,
    collective_of,
    unknown_ranks,
)
from hpccomm.errors import ResultsError
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


def is_one(text: str) -> bool:
    """Return whether a log is JSON."""
    return text.lstrip().startswith("{")


def parse(text: str, told: Told) -> list[ImportedRun]:
    """Return the run of a document.

    Raises
    ------
    ResultsError
        If it is no such document.
    """
    try:
        document = json.loads(text, parse_int=_integer)
        # What HDF5 cannot hold: half a surrogate pair is an error here, too.
        if b"\\u0000" in json.dumps(document, ensure_ascii=False).encode():
            raise ValueError("text has a null character")
        if document["version"] not in VERSIONS:
            raise ResultsError(
                f"{told.name} is nccl-tests' JSON of version {document['version']}; versions "
                f"{' and '.join(map(str, VERSIONS))} can be read"
            )
        return [_run(document, told)]
    except (
        *(ValueError, LookupError, TypeError, AttributeError),
        *(OverflowError, RecursionError),
    ) as error:
        raise ResultsError(
            f"{told.name} is not nccl-tests' JSON: {type(error).__name__}: {error}; give a file that -J of its "
            "programs has written"
        ) from error


def _integer(digits: str) -> int:
    value = int(digits)
    if not -LIMIT <= value < LIMIT:
        raise ValueError(f"{digits} is out of range")
    return value


def _run(document: dict[str, Any], told: Told) -> ImportedRun:
    settings = dict(document["config"])
    devices = settings.pop("devices", document.get("devices", []))
    ranks = tuple(map(_rank, devices)) or unknown_ranks(told.ranks or 0)
    results = document["results"]
    if not ranks:
        raise ResultsError(f"{told.name} does not say how many ranks there were; give --ranks")
    ranks = _with_nodes(ranks)
    rows, samples = [], []
    for result in results:
        for place in ("out_of_place", "in_place"):
            half = result.get(place)
            if half is not None:
                rows.append(_row(result, half, place == "in_place", document, told))
                samples.append(_samples(result.get(f"{place}_per_iter"), len(ranks)))
    config = _config(settings, rows)
    environment = dict(each.split("=", 1) for each in document.get("env", []) if "=" in each)
    version = document.get("nccl_version")
    info = RunInfo(
        started=datetime.strptime(document["start_time"], TIME_FORMAT).astimezone(),
        user=told.user,
        launcher="unknown",
        arguments=tuple(map(str, document.get("args", []))),
        skipped=(),
        config=config,
        ranks=ranks,
        versions={} if not version else {"nccl": _version(int(version))},
        environment=recorded_environment(environment),
        slurm=recorded_slurm(environment),
    )
    ended, errors = document.get("end_time"), document.get("errors") or []
    status = f"failed: {errors[0]}" if errors else "completed" if ended else CUT
    return ImportedRun(
        info,
        rows,
        samples,
        status,
        None if ended is None else datetime.strptime(ended, TIME_FORMAT).astimezone(),
    )


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


def _with_nodes(ranks: tuple[RankInfo, ...]) -> tuple[RankInfo, ...]:
    hosts = list(dict.fromkeys(each.host for each in ranks))
    return tuple(
        RankInfo(
            **{each.name: getattr(rank, each.name) for each in fields(rank)}
            | {"node": hosts.index(rank.host)}
        )
        for rank in ranks
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


def _row(
    result: dict[str, Any],
    half: dict[str, Any],
    in_place: bool,
    document: dict[str, Any],
    told: Told,
) -> Row:
    # hpccomm writes collective, backend and algorithm there; nccl-tests mostly nothing.
    named = str(result.get("experiment_name") or "").split()
    block = tuple(named) if len(named) == 3 else (_collective(document, told), "nccl", "auto")
    time = half["time"] if "time" in half else half["cpu_time"]
    wrong = half.get("nwrong")
    return Row(
        collective=block[0],
        backend=block[1],
        algorithm=block[2],
        dtype=str(result["type"]),
        op=str(result.get("redop") or "none"),
        root=int(result.get("root", -1)),
        bytes=int(result["size"]),
        count=int(result["count"]),
        in_place=in_place,
        time=float(time),
        algbw=float(_either(half, "alg_bw", "algbw")),
        busbw=float(_either(half, "bus_bw", "busbw")),
        wrong=UNCHECKED if wrong is None else int(wrong),
        iterations=int(result.get("actual_iterations", document["config"].get("iterations", 0))),
    )


def _either(half: dict[str, Any], *names: str) -> Any:
    """Return the value of the first of these keys that is there; versions spell it in two ways."""
    return half[next((name for name in names if name in half), names[0])]


def _collective(document: dict[str, Any], told: Told) -> str:
    if told.collective is not None:
        return told.collective
    for word in document.get("args", [])[:1]:
        if str(word).endswith("_perf"):
            return collective_of(str(word))
    raise ResultsError(f"{told.name} does not say which collective it measured; give --collective")


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
