"""Runs as text: nccl-tests' table byte for byte, statistics behind it, and the rates of memory and links.

The formats of the table are those of nccl-tests 2.19.6 (``src/util.cu``): parsers of its output read this table
too. Each function returns the text that nccl-tests prints at that point, line ends included.

Rates (``hpccomm perf memory`` and ``copy``) count the bytes that are read and written, as STREAM does (McCalpin, stream.c
5.10): a copy within a memory and an update in place count twice, a sum of two arrays into a third one three times. A
cache's reads of an array that is only written are not counted. A copy over a link counts once, in its own direction.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

import numpy as np

from hpccomm.errors import UsageError
from hpccomm.results.expectations import bound, bounding_link, fabric_rate
from hpccomm.results.schema import (
    REQUIRED_FRACTION,
    SIMULATED_BACKEND,
    UNCHECKED,
    Config,
    DeviceInfo,
    RankInfo,
    Row,
    RunInfo,
    Timing,
)
from hpccomm.results.timings import SUMMARY, iteration_statistics, summary
from hpccomm.units import counted, figure

TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
"""How nccl-tests writes a time."""

_LEAD = "# %10s  %12s  %8s  %6s  %6s"

_HALF = "  %7s  %6s  %6s  %6s"

_UNCHECKED = "  %7s  %6s  %6s    N/A"

_STATISTICS = "  %7s  %7s  %7s  %7s"


def run_header(
    info: RunInfo, collective: str, backend: str, algorithm: str, *, fold: bool = False
) -> str:
    """Return the header of a table: versions, settings and ranks, which may be folded."""
    config = info.config
    versions = {"hpccomm": "unknown", **info.versions}
    # A results file does not keep their order.
    others = "".join(f" {name}={versions[name]}" for name in sorted(versions) if name != "hpccomm")
    step = f"{config.step_bytes}(bytes)"
    if config.step_factor > 1:
        step = f"{config.step_factor}(factor)"
    lines = [
        f"# hpccomm version {versions['hpccomm']}{others}",
        f"# Collective test starting: {collective} backend {backend} algorithm {algorithm}",
        f"# nThread {config.nthreads} nGpus {config.ngpus} minBytes {config.minimum_bytes} "
        f"maxBytes {config.maximum_bytes} step: {step} warmup iters: {config.warmup_iters} "
        f"iters: {config.iterations} agg iters: {config.aggregated_iterations} "
        f"validation: {config.validation} graph: {config.graph} unalign: {config.unalign}",
    ]
    if config.blocking_collectives in _BLOCKING:
        lines.append(_BLOCKING[config.blocking_collectives])
    if config.local_register:
        shared = "the ranks of a node reach each other's arrays directly"
        how = "the library knows the arrays" if info.devices else shared
        lines.append(f"# Registered memory: {how}")
    if config.per_iter_timing:
        skip = config.per_iter_skip
        rest = f"; summary skips first {skip} iterations" if skip else ""
        lines.append(f"# Per-Iteration Report: i_* uses max over process rows{rest} ")
    if info.skipped:
        lines.append(f"# Skipped, as they do not exist: {', '.join(info.skipped)}")
    if info.simulation:
        lines += ["#", "# Simulated, not measured"]
        # Sorted, as a results file does not keep their order; a network's text is for programs.
        facts = sorted(info.simulation.items())
        lines += [f"#  {name} {value}" for name, value in facts if "\n" not in value]
        return "".join(line + "\n" for line in lines)
    lines += ["#", "# Using devices"]
    lines += folded_ranks(info) if fold else rank_lines(info)
    slowest, fabric = bounding_link(info), fabric_rate(info)
    if slowest is not None:
        lines.append(f"# Link of a device: {slowest.link}, {slowest.peak:g} GB/s in one direction")
    elif fabric is not None:
        lines.append(
            f"# Links of a node: {info.machine['fabric']}: {fabric:g} GB/s in one direction"
        )
    return "".join(line + "\n" for line in lines)


_BLOCKING = {
    1: "# Blocking Enabled: wait and barrier after each inner iteration (-m) ",
    2: "# Blocking Enabled: wait after each inner iteration (-m), no barrier ",
    3: "# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier ",
}

MOST_RANKS = 64
"""More are folded, a line for each node."""

MOST_NODES = 16
"""If there are more nodes, only the first and the last ones are shown."""


def rank_lines(info: RunInfo) -> list[str]:
    """Return a line for each rank."""
    devices: Sequence[DeviceInfo | None] = info.devices or (None,) * len(info.ranks)
    return [
        f"#  Rank {rank.rank:2d} Group {rank.group:2d} Pid {rank.pid:6d} on {rank.host:>10s} "
        f"device {rank.device:2d} [{rank.device_hex or 'none'}] {rank.device_info}, "
        + ("" if device is None else f"{device.uuid}, ")
        + f"node {rank.node}, cores {rank.cores}"
        for rank, device in zip(info.ranks, devices, strict=True)
    ]


def folded_ranks(info: RunInfo) -> list[str]:
    """Return a line for each rank, or for many ranks how many there were, and a line for each node."""
    if len(info.ranks) <= MOST_RANKS:
        return rank_lines(info)
    nodes = [list(ranks) for _, ranks in groupby(info.ranks, key=lambda rank: rank.node)]
    shown = [_node(ranks) for ranks in nodes]
    if len(shown) > MOST_NODES:
        few = MOST_NODES // 2
        between = f"#  ... {len(shown) - MOST_NODES} more lines like these"
        shown = [*shown[:few], between, *shown[-few:]]
    return [f"#  {len(info.ranks)} ranks on {counted(info.nodes, 'node')}", *shown]


def _node(ranks: Sequence[RankInfo]) -> str:
    devices = Counter(rank.device_info for rank in ranks)
    named = ", ".join(f"{count} x {name}" for name, count in devices.items())
    return f"#  Ranks {ranks[0].rank} to {ranks[-1].rank} on {ranks[0].host}: {named}"


def heading(config: Config) -> str:
    """Return the table's heading."""
    time = "cputime" if config.report_cputime else "time"
    half = [(time, "(us)"), ("algbw", "(GB/s)"), ("busbw", "(GB/s)"), ("#wrong", "")]
    form = _HALF
    placement = "           out-of-place                       in-place          "
    if config.per_iter_timing:
        half += [("i_min", "(us)"), ("i_max", "(us)"), ("i_p99", "(us)"), ("i_cv%", "(%)")]
        form += _STATISTICS
        placement = (
            "              out-of-place (+ per-iteration)"
            "                                in-place (+ per-iteration)"
        )
    names, units = zip(*half, strict=True)
    stamped = 19, "timestamp", TIME_FORMAT
    width, stamp, stamp_form = stamped if config.report_timestamps else (0, "", "")
    form = _LEAD + form + form + " %*s\n"
    first = "size", "count", "type", "redop", "root", *names, *names, width, stamp
    second = "(B)", "(elements)", "", "", "", *units, *units, width, stamp_form
    return f"#\n{_LEAD % (('',) * 5)}{placement}\n{form % first}{form % second}"


Half = tuple[Row, np.ndarray | None]
"""Half a line: the measurement, and the seconds of its repetitions, shape ``(repetitions, ranks)``. Only statistics
need these."""


def body(half: Half | None, config: Config) -> str:
    """Return one half of a line; `config` says which columns the table has. None: it was not measured."""
    if half is None:
        # As wide as an unchecked half, a word a column: parsers count columns from the right.
        absent = _UNCHECKED % (("N/A",) * 3)
        return absent + (_STATISTICS % (("N/A",) * 4) if config.per_iter_timing else "")
    row, samples = half
    figures = (figure(row.time, 7), figure(row.algbw, 6), figure(row.busbw, 6))
    checked = row.wrong != UNCHECKED
    text = _HALF % (*figures, f"{row.wrong:g}") if checked else _UNCHECKED % figures
    if not config.per_iter_timing:
        return text
    statistics = iteration_statistics(samples, config.per_iter_skip)
    shown = (figure(statistics[key], 7) if statistics else "N/A" for key in _SHOWN)
    return text + _STATISTICS % tuple(shown)


_SHOWN = ("min_us", "max_us", "p99_us", "cv_pct")
"""The statistics that have a column."""


def timestamp(row: Row, info: RunInfo) -> str:
    """Return the time stamp that ends a line, empty unless the table has that column."""
    if not info.config.report_timestamps:
        return ""
    finished = datetime.fromtimestamp(row.finished, info.started.tzinfo)
    return f"{finished.strftime(TIME_FORMAT):>21s}"


def line(info: RunInfo, *halves: Half) -> str:
    """Return one line of the table: a row out of place, one in place, or both of one case.

    Raises
    ------
    UsageError
        If there is no row, or they are not of the same case.
    """
    if len({row.case for row, _ in halves}) != 1:
        raise UsageError("a line of the table needs a row, or two of one case")
    row = halves[-1][0]
    placed = {half[0].in_place: half for half in halves}
    text = "".join(body(placed.get(in_place), info.config) for in_place in (False, True))
    start = f"{row.bytes:12d}  {row.count:12d}  {row.dtype:>8s}  {row.op:>6s}  {row.root:6d}"
    return start + text + timestamp(row, info) + "\n"


@dataclass(slots=True)
class TableTally:
    """The footer of a table, counted row by row.

    Attributes
    ----------
    rows : int
        How many rows there are.
    wrong : int
        Their wrong values.
    simulated : bool
        Whether they come from a simulation, which has no values that could be wrong.
    busbw : float
        The sum of their bus bandwidths in 1e9 B/s.
    best : float
        The largest of these.
    """

    rows: int = 0
    wrong: int = 0
    simulated: bool = False
    busbw: float = 0.0
    best: float = 0.0

    def add(self, row: Row) -> None:
        """Count a row."""
        self.rows += 1
        self.wrong += max(0, row.wrong)
        self.simulated = row.backend == SIMULATED_BACKEND
        self.busbw += row.busbw
        self.best = max(self.best, row.busbw)

    @property
    def mean(self) -> float:
        """The average bus bandwidth; 0 without rows."""
        return self.busbw / self.rows if self.rows else 0.0


def tallied(rows: Iterable[Row]) -> TableTally:
    """Return the tally of rows."""
    tally = TableTally()
    for row in rows:
        tally.add(row)
    return tally


def too_slow(tally: TableTally, least: float | None) -> bool:
    """Whether the average bus bandwidth of a table is below the least one, in 1e9 B/s, if given."""
    return least is not None and tally.mean < REQUIRED_FRACTION * least


def footer(
    tally: TableTally,
    collective: str,
    most: float | None = None,
    *,
    interrupted: bool = False,
    least: float | None = None,
    failed: str = "FAILED",
) -> str:
    """Return the footer of a table: the verdict on its values and the average bus bandwidth.

    Parameters
    ----------
    tally : TableTally
        The count of all rows of the table.
    collective : str
        Name of the collective.
    most : float, optional
        The bound of bus bandwidth in 1e9 B/s, if known: the best one is compared with it.
    interrupted : bool
        Whether the table ends before its last line; the text says so.
    least : float, optional
        The least average bus bandwidth, in 1e9 B/s: the text says whether it is reached.
    failed : str
        The word for a bandwidth below the least one.
    """
    peak = ""
    if most is not None and tally.rows:
        share = f"{tally.best / most:.0%} of the link's {most:g}"
        peak = f"# {'Peak bus bandwidth':20s} : {tally.best:g} ({share}) \n"
    judged = "" if least is None else failed if too_slow(tally, least) else "OK"
    end = "interrupted" if interrupted else "concluded"
    values = "N/A" if tally.simulated else f"{tally.wrong} {'FAILED' if tally.wrong else 'OK'}"
    return (
        f"# {'Out of bounds values':20s} : {values}\n"
        f"# {'Avg bus bandwidth':20s} : {tally.mean:g} {judged}\n"
        f"{peak}"
        "#\n"
        f"# Collective test {end}: {collective}\n"
        "#\n\n"
    )


def lines(rows: Sequence[Row]) -> Iterator[range]:
    """Yield the rows of each line, by index: one out of place, one in place, or both."""
    index = 0
    while index < len(rows):
        two = rows[index : index + 2]
        paired = [row.in_place for row in two] == [False, True] and two[0].case == two[1].case
        yield range(index, index + 1 + paired)
        index += 1 + paired


def run_text(
    info: RunInfo,
    rows: Sequence[Row],
    samples: Callable[[int], np.ndarray | None],
    *,
    finished: bool,
    whole: bool = True,
    statistics: bool = False,
    timings: Sequence[Timing] = (),
) -> str:
    """Return everything that a run printed: each block of one collective, header to footer.

    Parameters
    ----------
    info : RunInfo
        Facts of the run.
    rows : sequence of Row
        Its rows.
    samples : callable
        Gives the samples of the row at an index, or None; called only if there are statistics.
    finished : bool
        Whether the last block came to its end; else it has no footer.
    whole : bool
        Whether these are all rows of the run; else no block has a footer, since that sums up all rows.
    statistics : bool
        Whether statistics (`repetitions_text`) follow each block.
    timings : sequence of Timing or None
        How each row was timed, if that is known.
    """
    text: list[str] = []
    begin, per_iteration = 0, info.config.per_iter_timing
    for block, members in groupby(rows, key=lambda row: row.block):
        part = list(members)
        end = begin + len(part)
        text += [run_header(info, *block, fold=True), heading(info.config)]
        for indices in lines(part):
            halves = [(part[at], samples(begin + at) if per_iteration else None) for at in indices]
            text.append(line(info, *halves))
        if whole and (finished or end < len(rows)):
            text.append(footer(tallied(part), block[0], bound(info, block[0])))
        text.append(isolated_text(list(zip(part, timings[begin:end], strict=False))))
        if statistics:
            text.append(repetitions_text(info.config, part, map(samples, range(begin, end))))
        begin = end
    return "".join(text)


def repetitions_text(
    config: Config, rows: Iterable[Row], samples: Iterable[np.ndarray | None]
) -> str:
    """Return statistics over the repetitions of each row, as lines of comment.

    Parameters
    ----------
    config : Config
        Settings of the run.
    rows : iterable of Row
        The rows of one table.
    samples : iterable of ndarray or None
        The samples of each row, as of `Half`.
    """
    columns = SUMMARY
    heads = [(each.name, each.unit and f"({each.unit})") for each in columns]
    lines = []
    for row, times in zip(rows, samples, strict=True):
        number, *values = summary(times, config.per_iter_skip) or (0,)
        figures = [figure(value, 9).strip() for value in values] or ["N/A"] * (len(columns) - 1)
        lines.append((row, (f"{number:.0f}", *figures)))
    title = "Repetitions, each with the time of its slowest rank"
    return _commented(title, "  %11s" + "  %9s" * 6, heads, lines)


def isolated_text(lines: Sequence[tuple[Row, Timing]]) -> str:
    """Return isolated times of one table's operations, as comments; empty without any.

    Parameters
    ----------
    lines : sequence of (Row, Timing or None)
        The rows of the table.
    """
    timed = [(row, timing) for row, timing in lines if timing.sync]
    if not timed:
        return ""
    names = ("median", "95 % of", "it", "low", "high", "clocks")
    heads = [*((name, "(us)") for name in names), ("+- %", ""), ("late", "")]
    cells = []
    for row, timing in timed:
        figures = (
            *(timing.isolated, timing.certain_low, timing.certain_high),
            *(timing.isolated_low, timing.isolated_high, timing.clock_error),
        )
        width = (timing.certain_high - timing.certain_low) / 2 / timing.isolated * 100
        shown = [_known(value, 9) for value in figures]
        cells.append((row, (*shown, _known(width, 6), timing.late)))
    title = f"Isolated, started by {timed[0][1].sync}: from the earliest start to the latest end"
    return _commented(title, "  %9s" * 6 + "  %6s  %6s", heads, cells)


def _commented(
    title: str,
    form: str,
    heads: Sequence[tuple[str, str]],
    lines: Iterable[tuple[Row, tuple[object, ...]]],
) -> str:
    """Return cells for each row as lines of comment, under the names and units of their columns."""
    form = "# %12s  %12s  %8s  %6s  %6s  %8s" + form + "\n"
    names, units = zip(*heads, strict=True)
    text = [f"# {title}\n", form % ("size", "count", "type", "redop", "root", "in place", *names)]
    text.append(form % ("(B)", "(elements)", *("",) * 4, *units))
    for row, cells in lines:
        case = row.bytes, row.count, row.dtype, row.op, row.root, "yes" if row.in_place else "no"
        text.append(form % (*case, *cells))
    return "".join([*text, "#\n\n"])


def _known(value: float, width: int) -> str:
    return "N/A" if math.isnan(value) else figure(value, width).strip()


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

_RATE = "{:<16}  {:<34}  {:>11}  {:>10}  {:>7}  {:>6}  {:>7}  {}"

_RATE_HEADING = ("what", "where", "bytes", "us", "GB/s", "#wrong", "of peak", "path")

_MEMORY_LIMIT = """\
#
# An all_reduce of n ranks in shared memory reads and writes n arrays. Where these are larger than the
# caches, its busbw is at most (n-1)/n^2 of the best memory_update or memory_copy, {:.4g} GB/s:
#   {} GB/s"""
"""The memory's bound of an all-reduce, which reads and writes equally much."""

_MEMORY_RANKS = (2, 4, 8, 16, 32, 64)


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


def rates_text(
    info: RunInfo, rows: Sequence[Row], samples: Callable[[int], np.ndarray | None]
) -> str:
    """Return the rows of a run as a table.

    Parameters
    ----------
    info : RunInfo
        Facts of the run.
    rows : sequence of Row
        The measurements.
    samples : callable
        Gives the seconds of a row's repetitions, shape ``(repetitions, ranks)``, or None, by its index. From them each
        line names the slowest rank, if there are several nodes.
    """
    facts = [f"{name} {fact}" for name, fact in sorted(info.machine.items()) if name[:4] != "path"]
    versions = [f"{name}={version}" for name, version in sorted(info.versions.items())]
    lines = [f"# {', '.join(facts)}", f"# {' '.join(versions)}"]
    lines += folded_ranks(info) if len(info.ranks) > 1 else []
    lines.append(f"# {_RATE.format(*_RATE_HEADING)}")
    for index, row in enumerate(rows):
        path = info.machine.get(path_fact(row.collective, row.algorithm), "")
        peak = re.search(r": (\S+) GB/s$", path)
        share = f"{row.busbw / float(peak[1]):.0%}" if peak else ""
        if info.nodes > 1 and (seconds := samples(index)) is not None:
            slowest = info.ranks[int(np.argmax(np.median(seconds, axis=0)))]
            path = f"{path} slowest: rank {slowest.rank} on {slowest.host}".strip()
        figures = f"{row.time:.1f}", figure(row.busbw, 7).strip(), row.wrong, share, path
        line = _RATE.format(row.collective, row.algorithm, row.bytes, *figures)
        lines.append(f"  {line}".rstrip())
    alike = ("memory_copy", "memory_update")
    best = max((row.busbw for row in rows if row.collective in alike), default=0.0)
    limits = (f"{n} ranks {best * (n - 1) / n**2:.3g}" for n in _MEMORY_RANKS)
    lines += _MEMORY_LIMIT.format(best, ", ".join(limits)).splitlines() if best else []
    return "".join(f"{line}\n" for line in lines)
