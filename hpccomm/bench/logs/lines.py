"""The lines of a log, without what launchers and loggers put before each, and apart by who printed them."""

import re
from dataclasses import dataclass

_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CTIME = rf"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?{_MONTH} [ \d]\d {_TIME}(?: \d{{4}}(?=[\[\]<]))?"
_ISO = rf"\d{{4}}[-/]\d\d[-/]\d\d[T _-]{_TIME} ?(?:Z|[+-]\d\d:?\d\d)?"
_STAMP = rf"(?:{_ISO}|{_CTIME}|{_TIME})"
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL)"
_TABLE = r"(?=\s*(?:#|\d|\{|-?$))"
"""What follows a prefix that might be words of a sentence: a line of a table."""

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
    rf"\[? *\d+\.\d+\] ?{_TABLE}",  # dmesg, ts -s
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


@dataclass(frozen=True, slots=True)
class Line:
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


def streams(text: str) -> list[list[Line]]:
    """Return the lines of a log, apart by the tag of who printed them, in the order of their beginning.

    A launcher that tags each write instead of each line has tags amid a row: such a row is put together.
    """
    found: dict[str, list[Line]] = {}
    begun: dict[str, Line] = {}
    for number, raw in enumerate(re.split(r"\r*\n|\r", text), 1):
        source, tag, rest = _untagged(raw)
        pieces = [(source, rest)]
        if tag.startswith("[") and (source in begun or _ROW.match(rest)):
            # The tag amid the row has other digits, for it may be another rank's.
            shape = re.sub(r"\d+", r"\\d+", re.escape(tag.strip()))
            first, *more = re.split(rf"(?<=\S)({shape}) ?", rest)
            pieces = [(source, first)]
            pieces += [
                (_source(each), part) for each, part in zip(more[::2], more[1::2], strict=True)
            ]
        for place, (source, piece) in enumerate(pieces):
            before = begun.pop(source, None)
            if before is not None and piece.lstrip().startswith("#"):
                found.setdefault(source, []).append(before)
                before = None
            line = Line(before.number, before.text + piece) if before else Line(number, piece)
            if place < len(pieces) - 1:
                begun[source] = line
            else:
                found.setdefault(source, []).append(line)
    for source, line in begun.items():
        found.setdefault(source, []).append(line)
    return list(found.values())


def together(apart: list[list[Line]]) -> list[list[Line]]:
    """Return all lines as one stream: where tags do not say who printed a line."""
    return [sorted((line for lines in apart for line in lines), key=lambda line: line.number)]


def _untagged(raw: str) -> tuple[str, str, str]:
    """Return who printed a line, the last tag that says it, and the line without its prefixes."""
    source = tag = ""
    while (found := _PREFIX.match(raw)) and found.end():
        if said := found["tag"] or found["stream"]:
            tag = said
            source += _source(tag)
        raw = raw[found.end() :]
    return source, tag, raw


def _source(tag: str) -> str:
    return _UNSTABLE.sub("", tag)
