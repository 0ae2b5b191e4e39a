"""The lines of a log, without the prefixes of launchers and loggers, one stream for each origin.

The readers of this package work on these streams.
"""

import re
from collections import Counter
from dataclasses import dataclass

_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CTIME = rf"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?{_MONTH} [ \d]\d {_TIME}(?: \d{{4}}(?=[\[\]<]))?"
_ISO = rf"\d{{4}}[-/]\d\d[-/]\d\d[T _-]{_TIME} ?(?:Z|[+-]\d\d:?\d\d)?"
_STAMP = rf"(?:{_ISO}|{_CTIME}|{_TIME})"
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL)"
_TABLE = r"(?=\s*(?:#|\d|\{|-?$))"
"""The text behind a prefix that might be words of a sentence: a line of a table."""

_OPEN_MPI = rf"(?:\[[^\]]*\]|{_CTIME})*<std(?:out|err|diag)>:? ?"
"""mpirun --tag-output and --timestamp-output, and --output of Open MPI 5 with rank or name."""

_STREAM = (
    # mpiexec -l, -prepend-rank; torchrun; kubectl --prefix
    rf"\[[^\[\]]+\]:? ?{_TABLE}",
    # srun --label, which pads; mpiexec --label of PALS
    r"(?:[\w.-]+ )?\d+: ?(?=[#\s{]|$)",
    # pdsh, clush
    rf"[\w.-]+: {_TABLE}",
    # syslog and journald, after the time: host and program
    rf"[\w.-]+ [\w./-]+(?:\[\d+\])?: {_TABLE}",
    # docker compose, stern
    rf"[\w./-]+ +\| ?{_TABLE}",
)
"""Prefixes that say who printed a line."""

_OTHERS = (
    # kubectl --timestamps, ts, journald, syslog, Python's logging, a container's CRI
    rf"\[?{_STAMP}\]?(?: (?:stdout|stderr) [FP])?(?: - [\w.]+(?= - ))?"
    rf"(?:,? ?-? ?\[?{_LEVEL}\]?:?)?(?: -| \||:)?(?:[ \t]|{_TABLE})",
    r"\[ *\d+\.\d+\] ?|\d{10}\.\d+ ",  # since the system began, and since 1970: journald, ts
    rf"{_LEVEL}:[\w.]*: ?",  # Python's logging without a time
    rf"\[?{_LEVEL}\]?(?: -|:)? {_TABLE}",
    r"(?:> ?)+",  # a quotation
)
_PREFIX = re.compile(
    rf"\s*(?:(?P<tag>{_OPEN_MPI})|{'|'.join(_OTHERS)}|(?P<stream>{'|'.join(_STREAM)}))"
)
_UNSTABLE = re.compile(rf"\[?{_CTIME}\]?|<std\w+>|[:\s]+$")
"""Parts of a tag that do not say who printed the line."""

_ROW = re.compile(r"\s*\d+\s+\d+\s")
"""How a row of nccl-tests begins."""

_AMID = re.compile(r"(?<=\S)(\[(?:\d+,)*\d+\](?:<std\w+>)?:?)")
"""A tag amid a row, of a launcher that tags each write."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line.

    Attributes
    ----------
    number : int
        Of the line in the log where it begins, from 1.
    text : str
        Without what stands before it.
    """

    number: int
    text: str


def streams(text: str) -> list[list[LogLine]]:
    """Return the lines of a log, grouped by their origin's tag, in the order of their beginning.

    A launcher that tags each write instead of each line has tags amid a row: such a row is put together.
    """
    by_source: dict[str, list[LogLine]] = {}
    begun: dict[str, LogLine] = {}
    stripped = [_untagged(raw) for raw in re.split(r"\r*\n|\r", text)]
    unknown = _unknown_prefix([rest for _, _, rest in stripped])
    before_rows = [match[0] for _, _, rest in stripped if (match := unknown.match(rest))]
    # Of few forms it says who printed a line; of many it is a time.
    says_who = 4 * len(set(before_rows)) <= len(before_rows)
    for number, (source, tag, rest) in enumerate(stripped, 1):
        if match := unknown.match(rest):
            source += match[0] if says_who else ""
            rest = rest[match.end() :]
        pieces = [(source, rest)]
        if source in begun or _ROW.match(rest):
            first, *more = _AMID.split(rest)
            pieces = [(source, first)]
            # Of a log without tags before its lines all is one stream.
            whose = source.removesuffix(_source(tag))
            for each, piece in zip(more[::2], more[1::2], strict=True):
                pieces.append((whose + _source(each) if tag else source, piece))
        for place, (source, piece) in enumerate(pieces):
            before = begun.pop(source, None)
            if before is not None and piece.lstrip().startswith("#"):
                by_source.setdefault(source, []).append(before)
                before = None
            line = LogLine(number, piece)
            if before:
                line = LogLine(before.number, f"{before.text} {piece}")
            if place < len(pieces) - 1:
                begun[source] = line
            else:
                by_source.setdefault(source, []).append(line)
    for source, line in begun.items():
        by_source.setdefault(source, []).append(line)
    return list(by_source.values())


def _unknown_prefix(lines: list[str]) -> re.Pattern[str]:
    """Return the pattern of the most common text before a ``#``, with any digits."""
    before = [line[: line.index("#")] for line in lines if "#" in line]
    shapes = Counter(re.sub(r"\d+", "0", each) for each in before)
    (shape, number), *_ = shapes.most_common(1) or [("", 0)]
    if not shape.strip() or 2 * number < len(before):
        return re.compile("^(?!)")
    return re.compile("^" + r"\d+".join(map(re.escape, shape.split("0"))))


def together(apart: list[list[LogLine]]) -> list[list[LogLine]]:
    """Return all lines as one stream: where tags do not say who printed a line."""
    return [sorted((line for lines in apart for line in lines), key=lambda line: line.number)]


def _untagged(raw: str) -> tuple[str, str, str]:
    """Return who printed a line, the last tag that says it, and the line without its prefixes."""
    source = tag = ""
    while (prefix := _PREFIX.match(raw)) and prefix.end():
        if said := prefix["tag"] or prefix["stream"]:
            tag = said
            source += _source(tag)
        raw = raw[prefix.end() :]
    return source, tag, raw


def _source(tag: str) -> str:
    return _UNSTABLE.sub("", tag)
