"""The OSU micro-benchmarks: latency of collectives, and latency and bandwidth between two ranks.

Their sizes are those of a rank's message. A row has nccl-tests' size, as all rows of a results file: for a gather,
scatter, all-gather and all-to-all, that of all ranks' messages together.
"""

import re
from dataclasses import dataclass, field

from hpccomm.bench.logs.imported import ImportedRun, Told, collective_of, run_info, unknown_ranks
from hpccomm.bench.logs.lines import untagged
from hpccomm.bench.perf.collectives import COLLECTIVES
from hpccomm.errors import ResultsError
from hpccomm.results.schema import UNCHECKED, Config, Row

_TITLE = re.compile(
    r"#\s*OSU\s+(?:(MPI|NCCL|XCCL)(?:-[\w-]+)?[\s_]+)?(.*?)\s*Test(?:\s+v?([\d.]+))?\s*$",
    re.IGNORECASE,
)
_DATATYPE = re.compile(r"#\s*Datatype:\s*MPI_(\w+)", re.IGNORECASE)
_TYPES = {"CHAR": "uint8", "FLOAT": "float", "INT": "int32", "DOUBLE": "double"}
"""nccl-tests' names of the types that OSU's ``-T`` takes."""

OF_ALL = ("all_gather", "all_to_all", "gather", "scatter")
"""Collectives whose size counts the messages of all ranks."""


@dataclass(slots=True)
class _Open:
    library: str
    title: str
    version: str
    dtype: str = ""
    columns: list[str] = field(default_factory=list)
    lines: list[list[float]] = field(default_factory=list)


def is_one(lines: list[str]) -> bool:
    """Return whether a log has a test of OSU."""
    return any(_TITLE.match(line) for line in lines)


def parse(text: str, told: Told) -> list[ImportedRun]:
    """Return the runs of a log, in their order.

    Raises
    ------
    ResultsError
        If a line cannot be read, a test has no counterpart, or the number of ranks is not known.
    """
    found: list[_Open] = []
    for number, line in enumerate(untagged(text), 1):
        words = line.split()
        if title := _TITLE.match(line):
            found.append(_Open(title[1] or "MPI", title[2], title[3] or ""))
        elif not found or not words:
            continue
        elif datatype := _DATATYPE.match(line):
            found[-1].dtype = _TYPES.get(datatype[1].upper(), datatype[1].lower())
        elif line.startswith("#"):
            if words[1:2] == ["Size"] or "Latency" in line:
                found[-1].columns = _columns(line)
        elif words[0].replace(".", "").isdigit() and found[-1].columns:
            try:
                found[-1].lines.append([float(word) for word in words[: len(found[-1].columns)]])
            except ValueError as error:
                raise ResultsError(
                    f"line {number} of {told.name} is no line of OSU's: {line.strip()!r}; give a log as it "
                    "was printed"
                ) from error
    return [_run(each, told) for each in found if each.lines]


def _columns(line: str) -> list[str]:
    """Return the headings of columns, such as ``["Size", "Avg Latency(us)"]``; units may stand apart."""
    return [
        re.sub(r"\s*\(", "(", each) for each in re.split(r"\s{2,}|\t", line[1:].strip()) if each
    ]


def _run(run: _Open, told: Told) -> ImportedRun:
    name = re.sub(r"(?i)latency|bandwidth|personalized exchange", "", run.title).strip(" _-")
    name = name.replace(" ", "_").replace("-", "_")
    pair = not name
    collective = "send_recv" if pair else collective_of(name)
    if collective not in COLLECTIVES:
        raise ResultsError(
            f"{told.name} is of OSU's test {run.title!r}, which has no counterpart in hpccomm; leave it out"
        )
    size = 2 if pair else told.ranks
    if size is None:
        raise ResultsError(f"{told.name} does not say how many ranks there were; give --ranks")
    what = COLLECTIVES[collective].what
    dtype = run.dtype or ("float" if what.reduces else "uint8")
    itemsize = {"float": 4, "int32": 4, "double": 8}.get(dtype, 1)
    rows = []
    for cells in run.lines:
        line = dict(zip(run.columns, cells, strict=False))
        nbytes = int(line.get("Size", 0)) * (size if collective in OF_ALL else 1)
        seconds = _seconds(line, nbytes)
        algbw = nbytes / seconds / 1e9 if seconds else 0.0
        rows.append(
            Row(
                collective=collective,
                backend=run.library.lower(),
                algorithm="auto",
                dtype=dtype,
                op="sum" if what.reduces else "none",
                root=0 if what.rooted else -1,
                bytes=nbytes,
                count=nbytes // itemsize,
                in_place=False,
                time=seconds * 1e6,
                algbw=algbw,
                busbw=algbw * what.bus_factor(size),
                wrong=UNCHECKED,
                iterations=int(line.get("Iterations", 0)),
            )
        )
    sizes = [row.bytes for row in rows]
    config = Config(
        minimum_bytes=min(sizes),
        maximum_bytes=max(sizes),
        step_factor=2,
        step_bytes=0,
        iterations=max(row.iterations for row in rows),
        warmup_iters=0,
        validation=0,
    )
    versions = {"osu": run.version} if run.version else {}
    info = run_info(told, config, unknown_ranks(size), versions, [f"osu {run.title}"])
    return ImportedRun(info, rows, [None] * len(rows))


def _seconds(line: dict[str, float], nbytes: int) -> float:
    """Return the time of one operation: the average latency, or what the bandwidth makes of a message."""
    for name, value in line.items():
        if name in ("Avg Latency(us)", "Latency(us)"):
            return value * 1e-6
        if name == "Bandwidth(MB/s)":  # 1e6 bytes
            return nbytes / (value * 1e6) if value else 0.0
    raise ResultsError(
        f"OSU's columns {', '.join(line)} have neither an average latency nor a bandwidth"
    )
