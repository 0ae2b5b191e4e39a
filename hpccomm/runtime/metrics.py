"""Counters of calls as Prometheus reads them, in the file that ``HPCCOMM_METRICS_FILE`` names.

A thread writes it every few seconds, and so does the end of the process, by which a node exporter's
textfile collector sees it. It takes the place of the file before at once: no reader finds half of one.

The format: "Text-based format" of Prometheus' documentation, "Exposition formats".
"""

import logging
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import sleep

from hpccomm.runtime.dump import process
from hpccomm.runtime.lifetime import ExitStep, after_fork, at_exit, before_end, start_thread
from hpccomm.runtime.reports import Reports
from hpccomm.runtime.state import CallState
from hpccomm.settings import read

logger = logging.getLogger("hpccomm")

EVERY_SECONDS = 5.0
"""How often the file is written."""

FAMILIES = {
    "calls": "Calls that have ended, failed ones included.",
    "bytes": "Bytes of this rank's larger array, summed over the calls.",
    "seconds": "Seconds from call to return or completion, summed over the calls.",
    "failures": "Calls that have ended by an error.",
    "slow_calls": "Calls that took longer than HPCCOMM_SLOW_CALL or CommOptions.slow_call.",
}
"""The metrics ``hpccomm_..._total``, and their meanings."""

_observed: list[Reports] = []
_writing = Lock()
_running = False


def observe(calls: CallState) -> None:
    """Count the calls of a communicator from now on. Its counts stay when it is finalized."""
    global _running
    _observed.append(calls.reports)
    if not _running:
        _running = start_thread("hpccomm-metrics", _run)
        at_exit(ExitStep.CALLERS, write)
        before_end(write)


def file() -> Path:
    """Return the file: ``%r`` in its name is the rank, which else stands before the name's ending."""
    named = str(read("HPCCOMM_METRICS_FILE"))
    path = Path(named.replace("%r", str(process.rank)))
    return path if "%r" in named else path.parent / f"{path.stem}.{process.rank}{path.suffix}"


def write() -> None:
    """Write the file. A failure is logged."""
    path = file()
    new = path.with_name(f"{path.name}.new")
    try:
        with _writing:
            new.write_text(text(), encoding="utf-8")
            new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        logger.warning("the metrics cannot be written to %s: %s", path, error)


def text() -> str:
    """Return all counters in Prometheus' text format."""
    sums: dict[str, defaultdict[str, float]] = {each: defaultdict(int) for each in FAMILIES}
    for reports in _observed:
        origin, tallies = reports.origin, reports.snapshot()
        own = {"communicator": origin.name, "rank": str(origin.rank)}
        for (call, size), tally in tallies.items():
            labels = _labels(own | {"call": call, "size": size})
            sums["calls"][labels] += tally.calls
            sums["bytes"][labels] += tally.nbytes
            sums["seconds"][labels] += tally.seconds
        for call in {call for call, _ in tallies}:
            for family in ("failures", "slow_calls"):
                sums[family][_labels(own | {"call": call})] += reports.counted[family, call]
    lines = []
    for family, meaning in FAMILIES.items():
        name = f"hpccomm_{family}_total"
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} counter"]
        lines += [f"{name}{labels} {value}" for labels, value in sums[family].items()]
    return "\n".join(lines) + "\n"


def _labels(values: dict[str, str]) -> str:
    escaped = {ord("\\"): r"\\", ord('"'): r"\"", ord("\n"): r"\n"}
    each = (f'{name}="{value.translate(escaped)}"' for name, value in values.items())
    return f"{{{','.join(each)}}}"


def _run() -> None:
    while True:
        sleep(EVERY_SECONDS)
        write()


@after_fork
def _after_fork() -> None:
    global _running, _writing  # the file is the parent's; the child may make communicators of its own
    _running, _writing = False, Lock()
    _observed.clear()
