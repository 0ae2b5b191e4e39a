"""The reading of a log, piece by piece. Only lines with a word of a known message are examined.

`explain` calls `read`, which returns a report (`log_report`).
"""

import bz2
import gzip
import lzma
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from io import BufferedIOBase, BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hpccomm.errors import ResultsError
from hpccomm.tools.explain import log_report, meanings
from hpccomm.tools.explain.log_report import LineOrigin, LogReport, Sighting
from hpccomm.tools.explain.meanings import TABLE

PIECE = 1 << 22
"""Bytes that are read at a time."""

AHEAD = 1 << 16
"""Most bytes from the beginning of a traceback to its end."""

LONGEST = 1 << 12
"""Most bytes of a line, or of a message of several lines, that are examined."""

ENOUGH = 20_000
"""Number of sightings of a message after which further ones are only counted."""

_NCCL_RANK = " nranks "
_RANK = re.compile(r"\brank (\d{1,9}) nranks ")
_RAISED_BY = re.compile(r"\brank (\d{1,9}) raised:\s*$")
CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|\0")
"""Colors and other commands of a terminal, and the holes that a file system leaves in a log of a lost node."""

PACKED: dict[bytes, tuple[str, Callable[[Any], Any]]] = {
    b"\x1f\x8b": ("gzip", gzip.open),
    b"BZh": ("bzip2", bz2.open),
    b"\xfd7zXZ": ("xz", lzma.open),
}
"""The first bytes of a packed file, its format, and the function that opens it."""

DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""Errors of reading a packed file."""

Near = tuple[str, str, Iterator[str]]
"""The arguments `before`, `said` and `after` of `went_on`."""

_EXCEPTION = next(each for each in TABLE if each.name == "python-exception")
_UNFINISHED = next(each for each in TABLE if each.name == "nccl-tests-unfinished")
_HEADING, _TABLE_END = b"algbw   busbw", b"Out of bounds values"
"""The heading of nccl-tests' table, and the first line behind its rows (``src/util.cu``)."""
_ROW = re.compile(rb"^.*?(?<![\w.-])(\d{1,18}) +\d+ +[a-z]\w+ +(?:[a-z]\w+ +)?-?\d.*", re.MULTILINE)


def read(stream: "BufferedReader[Any]", name: str) -> LogReport:
    """Read a log.

    Parameters
    ----------
    stream : BufferedReader
        The log: text, or text packed by gzip, bzip2 or xz.
    name : str
        Name of the log, for the report.

    Raises
    ------
    ResultsError
        If it is not a log.
    """
    begin = stream.peek()
    reader = _LogReader(LogReport(name))
    unpack = next((each for magic, (_, each) in PACKED.items() if begin.startswith(magic)), None)
    text = "" if unpack else begin[: begin.rfind(b"\n") + 1 or None].decode("latin-1")
    what = meanings.foreign(text)
    data = b""
    pieces = _pieces(unpack(stream) if unpack else stream, reader.report)
    for data, end in islice(pieces, 1 if what else None):
        reader.take(data, end)
    reader.note_unfinished_table(data)
    reader.report.lines += bool(data) and not data.endswith(b"\n")
    if what and not reader.report.status:
        warnings = reader.report.of("warning")
        seen = (f"; line {each.line}: {each.message.meaning}" for each in warnings)
        raise ResultsError(f"{name} is not a log but {what}{''.join(seen)}")
    reader.report.compare_calls()
    return reader.report


def _pieces(stream: BufferedIOBase, report: LogReport) -> Iterator[tuple[bytes, int]]:
    """Yield pieces, each with the end of its new part. The bytes behind that end come again in the next piece."""
    rest, over = b"", False
    while not over:
        parts, size = [rest], 0
        try:
            while size < PIECE and not over:
                parts.append(stream.read1(PIECE))
                size += len(parts[-1])
                over = not parts[-1]
        except DAMAGED as error:
            report.damage = str(error)
            over = True
        data = b"".join(parts)
        ahead = 0 if over else max(len(data) - AHEAD, 0)
        end = len(data) if over else data.rfind(b"\n", 0, ahead) + 1 or ahead
        yield data, end
        rest = data[end:]


class _LogReader:
    """A reader that takes a log piece by piece, and fills a report."""

    def __init__(self, report: LogReport) -> None:
        self.report = report
        self._rows = defaultdict[str, set[int]](set)
        for row, each in enumerate(TABLE):
            for word in each.words:
                self._rows[word].add(row)
        self._scanner = WordScanner([*self._rows, *BEGINS, _NCCL_RANK])
        self._in_table = False
        self._usual: dict[frozenset[str], Sighting | None] = {}
        """The last message of lines with these words. When it was seen often enough, such lines are only counted."""
        self._raised: dict[str, int] = {}
        """The line of the last exception with a traceback, by the tag of its lines."""
        self._covered: dict[str, int] = {}
        """The last line of a message of several lines, by the tag of its lines."""

    def take(self, data: bytes, end: int) -> None:
        """Take a piece."""
        counted, start, last = 0, 0, -1
        words: set[str] = set()
        if (begun := data.rfind(_HEADING, 0, end)) >= 0 or _TABLE_END in data[:end]:
            self._in_table = begun > data.rfind(_TABLE_END, 0, end)
        for at, word in self._scanner.places(data, end):
            if at > last:
                if words:
                    self._look(data, start, last, words)
                start, last = _line(data, at)
                self.report.lines += data.count(b"\n", counted, start)
                counted, words = start, set()
            words.add(word)
        if words:
            self._look(data, start, last, words)
        self.report.lines += data.count(b"\n", counted, end)

    def note_unfinished_table(self, data: bytes) -> None:
        """Report that a benchmark stopped amid its table, if the log ends so. `data` is the log's last piece."""
        *_, row = [None, *_ROW.finditer(data)]
        if not self._in_table or row is None:
            return
        rest = data[row.end() :]
        said = f"{_UNFINISHED.meaning}; the last size that it has printed is {int(row[1])} B"
        said += "; then it was interrupted from the keyboard" if b"^C" in rest else ""
        line = self.report.lines - data.count(b"\n", row.start()) + 1
        origin, text = log_report.split(_text(row[0]))
        kind = "consequence" if self.report.status else _UNFINISHED.kind
        self.report.add(replace(_UNFINISHED, kind=kind, meaning=said), line, text, origin, {})

    def _look(self, data: bytes, start: int, end: int, words: set[str]) -> None:
        """Examine a line that has the words `words`."""
        number = self.report.lines + 1
        usual, line = self._usual.get(key := frozenset(words)), data[start:end]
        if usual and usual.count >= ENOUGH and usual.message.pattern.search(_text(line)):
            usual.count += 1
            return
        rows = sorted({row for word in words for row in self._rows.get(word, ())})
        size = LONGEST if any(TABLE[row].spans for row in rows) else end - start
        origin, text = log_report.split(_text(data[start : start + size]))
        if _NCCL_RANK in words and (match := _RANK.search(text)):
            self.report.ranks[origin.process] = int(match[1])
        raised = self._raised.get(origin.tag, 0)
        if number == raised or number <= self._covered.get(origin.tag, 0):
            return
        if words.intersection(BEGINS) and number > raised:
            self._take_traceback(data, start, number, origin)
        elif number > raised or not text.startswith(" "):
            near = ("", text.partition("\n")[0], _lines_after(origin, data, start, 1))
            self._usual[key] = self._take_message(rows, number, text, origin, near)

    def _take_message(
        self,
        rows: list[int],
        number: int,
        text: str,
        origin: LineOrigin,
        near: Near,
        place: str = "",
    ) -> Sighting | None:
        """Add the first message of the table that begins in the first line of a text, and return its sighting."""
        end = text.find("\n") % (len(text) + 1)
        for message in map(TABLE.__getitem__, rows):
            match = message.pattern.search(text, 0, len(text) if message.spans else end)
            if match is None or match.start() > end:
                continue
            said = text[: text.find("\n", match.end()) % (len(text) + 1)]
            if not place and "\n" in said:
                self._covered[origin.tag] = number + said.count("\n")
            details = {name: value for name, value in match.groupdict().items() if value}
            # A program cannot go on after a crash, as it can after an exception.
            went_on = partial(log_report.went_on, "" if FATAL in said else message.component, *near)
            return self.report.add(message, number, said, origin, details, place, went_on)
        return None

    def _take_traceback(self, data: bytes, start: int, number: int, origin: LineOrigin) -> None:
        before = _text(data[max(start - 200, 0) : start])
        traceback = read_traceback(_lines_of(origin.tag, data, start, number))
        if traceback is None:
            return
        last, said, place = traceback
        if raised_by := _RAISED_BY.search(before):
            origin = origin._replace(rank=int(raised_by[1]))
        self._raised[origin.tag] = last
        before = before[before[:-1].rfind("\n") + 1 :]
        if "Exception ignored in" in before:  # that line is a message of its own
            return
        rows = [row for row, each in enumerate(TABLE) if any(word in said for word in each.words)]
        after = _lines_after(origin, data, start, last - number + 1)
        # PyTorch's hook puts that tag before the lines of an uncaught exception.
        near = (before, "", iter(()) if re.search(r"\[rank\d+\]: $", origin.tag) else after)
        if self._take_message(rows, last, said, origin, near, place) is None:
            text = said.partition("\n")[0]
            went_on = partial(log_report.went_on, "Python", *near)
            self.report.add(_EXCEPTION, last, text, origin, {"what": text}, place, went_on)


def _lines_of(tag: str, data: bytes, start: int, number: int) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a rank from a traceback on, without their prefixes."""
    lead = None
    for origin, text in _lines(data, start):
        if origin.tag == tag:
            if lead is None:  # take the text before the traceback as an unknown prefix
                lead = text[: max(text.find(BEGIN), 0)]
                lead = "" if "+ Exception Group" in lead else lead
            yield number, text.removeprefix(lead)
        number += 1


def _lines_after(origin: LineOrigin, data: bytes, start: int, count: int) -> Iterator[str]:
    """Yield the lines of a rank that follow after the next `count` lines of all ranks."""
    for other, text in islice(_lines(data, start), count, None):
        if other.tag == origin.tag or other.rank == origin.rank is not None:
            yield text


def _lines(data: bytes, start: int) -> Iterator[tuple[LineOrigin, str]]:
    """Yield the lines from a place on, at most `AHEAD` bytes."""
    last = min(start + AHEAD, len(data))
    while start < last:
        end = data.find(b"\n", start, last) % (last + 1)
        yield log_report.split(_text(data[start:end]))
        start = end + 1


def _line(data: bytes, at: int) -> tuple[int, int]:
    """Return the begin and the end of the line around a place. Carriage returns divide lines too."""
    floor, ceiling = max(at - LONGEST, 0), at + LONGEST
    start = max(data.rfind(b"\n", floor, at), data.rfind(b"\r", floor, at), floor - 1) + 1
    ends = [end for each in (b"\n", b"\r") if (end := data.find(each, at, ceiling)) >= 0]
    return start, min([*ends, len(data), ceiling])


def _text(data: bytes) -> str:
    return CONTROL.sub("", data.decode("utf-8", "backslashreplace")).replace("\r\n", "\n")


LENGTH = 6
"""Bytes of a word's beginning that the scanner looks for: three pairs."""

GROUPS = 10
"""Number of groups of words: three bits for each group fit into a number of 32 bits."""

BLOCK = 1 << 17
"""Bytes scanned at a time; they fit a core's cache."""


class WordScanner:
    """A search for many words at once, by a table of pairs of bytes.

    Each group of words has a bit for each of its three pairs. If three pairs in a row have the bits
    of one group, one of its words may be there, and the bytes are compared. This is the idea of the
    Teddy algorithm (Langdale, in Hyperscan), by whole arrays.

    Parameters
    ----------
    words : iterable of str
        The words, each of at least `LENGTH` characters of ASCII.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = defaultdict(list)
        for word in words:
            self._words[word.encode()[:LENGTH]].append(word.encode())
        self._bits = np.zeros(1 << 16, np.uint32)
        starts = sorted(self._words)
        values = sorted(int.from_bytes(start, "little") for start in starts)
        self._starts = np.array(values, np.uint64)
        for number, start in enumerate(starts):
            group = number * GROUPS // len(starts)
            for pair in range(LENGTH // 2):
                value = int.from_bytes(start[2 * pair : 2 * pair + 2], "little")
                self._bits[value] |= np.uint32(1 << (group + GROUPS * pair))

    def places(self, data: bytes, end: int) -> Iterator[tuple[int, str]]:
        """Yield the place and the word of each word that begins before `end`, in order."""
        for begin in range(0, end, BLOCK):
            last = min(begin + BLOCK, end)
            block = data[begin : last + LENGTH - 1]
            for at in self._candidates(block):
                for word in self._words.get(block[at : at + LENGTH], ()):
                    if data.startswith(word, begin + at):
                        yield begin + at, word.decode()

    def _candidates(self, block: bytes) -> list[int]:
        """Return the places in a block that have the first `LENGTH` bytes of a word, in order."""
        parts = []
        for odd in (0, 1):
            pairs = np.frombuffer(block, "<u2", max(len(block) - odd, 0) // 2, odd * bool(block))
            bits = self._bits.take(pairs, mode="clip")  # without a check of each index
            fits = bits[1:-1] >> GROUPS
            fits &= bits[:-2]
            fits &= bits[2:] >> 2 * GROUPS
            at = np.flatnonzero(fits != 0)
            first, second, third = (pairs[at + pair].astype(np.uint64) for pair in range(3))
            values = first | (second << np.uint64(16)) | (third << np.uint64(32))
            nearest = np.searchsorted(self._starts, values).clip(max=len(self._starts) - 1)
            parts.append(2 * at[self._starts[nearest] == values] + odd)
        places: list[int] = np.sort(np.concatenate(parts)).tolist()
        return places


BEGIN = "Traceback (most recent call last)"
FATAL = "Fatal Python error: "
BEGINS = (BEGIN, FATAL)
"""The beginning of a traceback, and that of faulthandler's report, whose first frame is the innermost."""

MOST_SAID = 10
"""Most lines of an exception's message that are read."""

_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,)? in (?P<name>\S+)')
_MODULES = "|".join(re.escape(each.name) for each in Path(__file__).parents[2].iterdir())
_NOT_THE_USERS = re.compile(
    rf"site-packages|dist-packages|/lib(?:64)?/python\d|^<|\.p(?:yx|xd|yd|xi)$|/hpccomm/(?:{_MODULES})(?:/|$)"
)
"""Pattern of files that are not the user's: also hpccomm's own in a checkout, which may have the user's as well."""
_IN_GROUP = re.compile(r"^ +[|+] ?")
"""Pattern of the prefix of each line in a traceback of an exception group."""
_RAISED = re.compile(r"(?:[\w.]*\.)?\w+(?:: .*)?$")


def read_traceback(lines: Iterable[tuple[int, str]]) -> tuple[int, str, str] | None:
    """Read a traceback.

    Parameters
    ----------
    lines : iterable of (int, str)
        Lines of one rank, from the first line of the traceback on, with their numbers. If lines have no
        tags, those of several ranks may be mixed.

    Returns
    -------
    tuple of int, str, str; or None
        Number of the line with the exception; the exception, with lines after it that may belong to it; and
        the place in the user's program, such as ``train.py line 41, in step``, empty if no frame is in the
        user's files. None if the traceback has no end.
    """
    place, raised, framed, in_group = "", 0, False, False
    said: list[str] = []
    for number, line in lines:
        if BEGIN in line:
            in_group = line.lstrip().startswith(("+", "|"))
        if in_group:
            line = _IN_GROUP.sub("", line)
        frame = _FRAME.match(line)
        if raised and (FATAL not in said[0]):  # the exception may have several lines
            if not line.strip() or frame or BEGIN in line or len(said) > MOST_SAID:
                break
            said.append(line)
        elif frame is not None:
            framed = True
            if not _NOT_THE_USERS.search(frame["file"]) and not (raised and place):
                name = frame["file"].rpartition("/")[2]
                place = f"{name} line {frame['line']}, in {frame['name']}".replace(
                    ", in <module>", ""
                )
        elif FATAL in line:
            raised, said = number, [line[line.index(FATAL) :]]
        elif raised and (line.startswith("Extension modules") or (place and not line.strip())):
            break
        elif framed and not raised and not line.startswith(" ") and _RAISED.match(line):
            raised, said = number, [line.strip()]
    return (raised, "\n".join(said), place) if raised else None
