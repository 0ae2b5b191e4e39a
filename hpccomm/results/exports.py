"""Rows for other programs: as nccl-tests' JSON, version 3; and as CSV.

A line of CSV has the facts that identify its run, and statistics over its repetitions.
"""

import csv
import io
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from hpccomm.contracts.variables import version_code
from hpccomm.results import table, timings
from hpccomm.results.schema import UNCHECKED, Column, Config, Row, RunInfo, columns
from hpccomm.results.timings import SUMMARY, summary

VERSION = 3
"""Version of nccl-tests' schema."""


def document(
    info: RunInfo,
    rows: Sequence[Row],
    samples: Callable[[int], np.ndarray | None],
    *,
    ended: datetime | None = None,
    errors: Sequence[str] = (),
    whole: bool = True,
) -> dict[str, Any]:
    """Return a run as nccl-tests' JSON object.

    Parameters
    ----------
    info : RunInfo
        Facts of the run.
    rows : sequence of Row
        Its rows, in order.
    samples : callable
        Gives the seconds ``(repetitions, ranks)`` of the row at an index, or None. Rows that have
        some get statistics over their repetitions.
    ended : datetime, optional
        When the run ended; without it the document has no ``end_time``.
    errors : sequence of str
        Errors that the run met.
    whole : bool
        Whether these are all rows; else there is nothing that sums them up.

    Notes
    -----
    nccl-tests writes a truth value as the string ``"true"`` or ``"false"``, the root as a string
    and not-a-number as ``"nan"``; so does this. Its ``experiment_name``, which nccl-tests mostly
    leaves empty, identifies the tables of a run: collective, backend and algorithm.
    """
    tally, nccl = table.tallied(rows), info.versions.get("nccl")
    wrong, bandwidth = (tally.wrong, tally.mean) if whole else (None, math.nan)
    result: dict[str, Any] = {
        "version": VERSION,
        "start_time": info.started.strftime(table.TIME_FORMAT),
        "args": list(info.arguments),
        "env": [f"{name}={value}" for name, value in {**info.environment, **info.slurm}.items()],
        "nccl_version": version_code(nccl) if nccl else None,
        "config": {
            **_config(info.config),
            "devices": [
                {key: getattr(rank, field) for key, field in _DEVICE.items()} for rank in info.ranks
            ],
        },
        "results": _results(info.config, rows, samples),
        "out_of_bounds": {"count": wrong, "okay": _truth(wrong == 0) if whole else "unchecked"},
        "average_bus_bandwidth": {"bandwidth": _number(bandwidth), "okay": "unchecked"},
        "errors": list(errors),
    }
    if ended is not None:
        result["end_time"] = ended.strftime(table.TIME_FORMAT)
    return result


_DEVICE = {
    name: "host" if name == "hostname" else name
    for name in ("rank", "group", "pid", "hostname", "device", "device_hex", "device_info")
}
"""Keys of a rank in nccl-tests' JSON, with the fields of `RankInfo`."""


_CONFIG = (
    *("nthreads", "ngpus", "minimum_bytes", "maximum_bytes", "step_factor", "step_bytes"),
    *("warmup_iters", "iterations", "aggregated_iterations", "validation", "graph"),
    *("blocking_collectives", "per_iter_timing", "per_iter_skip", "parallel_init"),
    "local_register",
)
"""Fields of `Config` that nccl-tests writes, in its order."""

_TRUTHS = ("blocking_collectives", "per_iter_timing", "parallel_init")
"""The fields that it writes as truth values."""


def _config(config: Config) -> dict[str, Any]:
    left_out = "step_bytes" if config.step_factor > 1 else "step_factor"
    values = {name: getattr(config, name) for name in _CONFIG if name != left_out}
    return values | {name: _truth(values[name] != 0) for name in _TRUTHS}


def _results(
    config: Config, rows: Sequence[Row], samples: Callable[[int], np.ndarray | None]
) -> list[dict[str, Any]]:
    results = []
    for indices in table.lines(rows):
        row, placed = rows[indices[0]], {rows[index].in_place: index for index in indices}
        result: dict[str, Any] = {
            "size": row.bytes,
            "count": row.count,
            "type": row.dtype,
            "redop": row.op,
            "root": f"{row.root:6d}",
        }
        for place, index in (("out_of_place", placed.get(False)), ("in_place", placed.get(True))):
            result[place] = None if index is None else _half(config, rows[index])
            times = None if index is None else samples(index)
            if statistics := _per_iteration(times, config.per_iter_skip):
                result[f"{place}_per_iter"] = statistics
        result["actual_iterations"] = row.iterations
        result["experiment_name"] = " ".join(row.block)
        results.append(result)
    return results


def _half(config: Config, row: Row) -> dict[str, Any]:
    return {
        "cpu_time" if config.report_cputime else "time": _number(row.time),
        "alg_bw": _number(row.algbw),
        "bus_bw": _number(row.busbw),
        "nwrong": None if row.wrong == UNCHECKED else row.wrong,
    }


def _per_iteration(samples: np.ndarray | None, skip: int) -> dict[str, Any]:
    statistics = timings.iteration_statistics(samples, skip)
    if samples is None or not statistics:
        return {}
    times = (timings.iteration_times(samples) * 1e6).tolist()
    result = {"skipped_iterations": skip, **statistics, "times_us": times}
    if samples.shape[1] > 1:
        result["per_process_max_times_us"] = (samples.T * 1e6).tolist()
    return result


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _number(value: float) -> float | str:
    """Return a figure as JSON has it: text where it is not finite."""
    return value if math.isfinite(value) else str(value)


_FACTS: tuple[Column, ...] = (
    Column("run", "str", "name of the run in its results file; empty without one"),
    Column("started", "str", "when the run started, ISO 8601 with the offset from UTC"),
    Column("ranks", "<i8", "number of ranks"),
    Column("nodes", "<i8", "number of nodes"),
    Column("hpccomm", "str", "version of hpccomm"),
    Column(
        "variant", "str", "which of two interleaved variants was measured; empty if there was one"
    ),
)

_SUFFIXES = {"us": "_us", "s": "_s", "1e9 B/s": "_GBps", "%": "_pct"}
"""The unit's suffix of a column's name. Names of bytes and count are their units."""


def stored_columns() -> tuple[Column, ...]:
    """Return the columns' values: the facts of the run, `Row`, and `SUMMARY`.

    The name of a column ends in its unit: ``time_us``, ``busbw_GBps``.
    """
    return tuple(
        each._replace(name=each.name + _SUFFIXES.get(each.unit, ""))
        for each in (*_FACTS, *columns(Row), *SUMMARY)
    )


def heading() -> str:
    """Return the first line: the names of `stored_columns`."""
    return _line(tuple(column.name for column in stored_columns()))


def line(name: str, info: RunInfo, row: Row, samples: np.ndarray | None, variant: str = "") -> str:
    """Return the line of one row.

    An unchecked row has an empty ``wrong``, and one without samples empty statistics. ``in_place`` is 0
    or 1. Figures have all their digits.

    Parameters
    ----------
    name : str
        Name of the run; empty for one that is not in a file.
    info : RunInfo
        Facts of the run.
    row : Row
        The measurement.
    samples : ndarray or None
        Seconds of each repetition on each rank, shape ``(repetitions, ranks)``.
    variant : str
        The variant of the row.
    """
    values = {column.name: getattr(row, column.name) for column in columns(Row)}
    values["in_place"] = int(row.in_place)
    values["wrong"] = "" if row.wrong == UNCHECKED else row.wrong
    ranks, version = len(info.ranks), info.versions.get("hpccomm", "")
    facts = name, info.started.isoformat(), ranks, info.nodes, version, variant
    statistics = summary(samples, info.config.per_iter_skip) or ("",) * len(SUMMARY)
    return _line((*facts, *values.values(), *statistics))


def _line(values: tuple[object, ...]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
