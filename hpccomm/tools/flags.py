"""The argument parser of the command line, which raises hpccomm's errors; flags that several verbs have.

Readers of flags' values: from text to value, or an error that says what fits.

The flags of all verbs read their values by these functions.
"""

import argparse
import itertools
import math
import re
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hpccomm import units
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.schedules.algorithms import registered
from hpccomm.tools import output
from hpccomm.tools.flag import Flag
from hpccomm.units import seconds, size

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from hpccomm.results.archive import Query

T = TypeVar("T")

ALL = "all"
ALL_ROOTS = -1

_INTEGER = re.compile(r"[+-]?(?:0x[0-9a-f]+|\d+)", re.IGNORECASE | re.ASCII)


def segment(text: str) -> int:
    """Read the size of a segment, which must move something."""
    nbytes = size(text)
    if nbytes < 1:
        raise ArgumentTypeError(f"{text!r}: nothing would move; give 1 byte or more")
    return nbytes


def segments(text: str) -> tuple[int, ...]:
    """Read such sizes with commas between them."""
    return tuple(map(segment, listed(text)))


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a reader of integers from `low` to `high`."""
    fits = f"an integer from {low} " + ("up" if high is None else f"to {high}")

    def read(text: str) -> int:
        try:
            value = int(text, 0) if _INTEGER.fullmatch(text) else None
        except ValueError:  # 010, which is 8 to nccl-tests, or thousands of digits
            value = None
        if value is None:
            raise ArgumentTypeError(f"{text!r} is not an integer; give {fits}")
        if value < low or (high is not None and value > high):
            raise ArgumentTypeError(f"{value} is out of range; give {fits}")
        return value

    return read


def switch(text: str) -> bool:
    """Read 0 or 1."""
    return bool(integer(0, 1)(text))


def only(neutral: int, why: str) -> Callable[[str], int]:
    """Return a reader for a flag that has no effect here; it accepts only `neutral`."""

    def read(text: str) -> int:
        if text != str(int(neutral)):
            raise ArgumentTypeError(
                f"{text!r} is not possible: {why}; give {int(neutral)} or leave it out"
            )
        return neutral

    return read


def _known(text: str, names: Collection[str], refusal: str, how: str) -> str:
    """Return `text` if it is one of `names`; `refusal` says why another is refused."""
    if text not in names:
        advice = did_you_mean(text, names, f"give {how} {', '.join(names)}")
        raise ArgumentTypeError(f"{text!r} {refusal}; {advice}")
    return text


def one_of(names: Sequence[str], what: str) -> Callable[[str], str]:
    """Return a reader of one of some names."""
    return lambda text: _known(text, names, f"is not a {what}", "one of")


def choice(
    name: str,
    names: Sequence[str],
    what: str,
    meaning: str,
    default: str = "",
    *,
    required: bool = False,
) -> Flag:
    """Return a flag that takes one of some names."""
    usage = f"{name} {{{','.join(names)}}} {default}"
    return Flag(usage, one_of(names, what), meaning, required=required)


def root(text: str) -> int:
    """Read a rank, or ``all``, which is -1 to nccl-tests."""
    return ALL_ROOTS if text in (ALL, str(ALL_ROOTS)) else integer(0)(text)


def percentage(text: str) -> float:
    """Read a percentage, with or without its sign; return the part of the whole."""
    value = _number(text.strip().removesuffix("%"))
    if not 0 < value <= 100:
        fits = "a number above 0 and at most 100, such as 2%"
        raise ArgumentTypeError(f"{text!r} is not a percentage; give {fits}")
    return value / 100


def duration(text: str) -> float:
    """Read a time that is not 0."""
    if not (value := seconds(text)) > 0:
        raise ArgumentTypeError(f"{text!r} is not a time; give more than 0, such as 60s")
    return value


def bandwidth(text: str) -> float:
    """Read a bandwidth in 1e9 B/s."""
    if not 0 <= (value := _number(text)) < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a bandwidth; give GB/s, such as 370")
    return value


def _number(text: str) -> float:
    """Return a number; NaN for any other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def command(text: str) -> tuple[str, ...]:
    """Read a command in words, quoted as for a shell."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not a command: {error}") from None
    if not words:
        raise ArgumentTypeError("an empty command; give one such as 'mpiexec -n 4'")
    return words


def series(text: str) -> dict[str, str]:
    """Read the name of a series, the number of a launch in it, and how many there are."""
    match = re.fullmatch(r"(.+):(\d+):(\d+)", text)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        raise ArgumentTypeError(
            f"{text!r} is not a launch of a series; give NAME:LAUNCH:LAUNCHES such as nightly:3:10"
        )
    return {"name": match[1], "launch": match[2], "launches": match[3]}


def named(text: str) -> str:
    """Read a name."""
    if not text:
        raise ArgumentTypeError("an empty name; give one")
    return text


def file(text: str) -> Path:
    """Read the name of a file."""
    if not text:
        raise ArgumentTypeError("an empty name; give that of a file")
    return Path(text)


def json_file(text: str) -> Path:
    """Read the name of a file of JSON."""
    if not text.lower().endswith(".json"):
        fits = "JSON is what can be written: give a name ending in .json"
        raise ArgumentTypeError(f"{text!r} has no known suffix; {fits}")
    return Path(text)


def listed(text: str) -> tuple[str, ...]:
    """Read names with commas between them, without repeated ones."""
    names = tuple(text.split(","))
    if not all(names):
        raise ArgumentTypeError(f"{text!r} has an empty name; separate names by one comma")
    return tuple(dict.fromkeys(names))


def some_of(table: Mapping[str, T], refusal: str) -> Callable[[str], tuple[T, ...]]:
    """Return a reader of keys of a table, or ``all``, that gives each of their values once.

    `refusal` says why another key is refused.
    """

    def read(text: str) -> tuple[T, ...]:
        names = tuple(table) if text == ALL else listed(text)
        values = (table[_known(name, table, refusal, f"{ALL} or some of")] for name in names)
        return tuple(dict.fromkeys(values))

    return read


def algorithms(names: Collection[str], refusal: str) -> Callable[[str], tuple[str, ...]]:
    """Return a reader of these algorithms and of other packages' ones; ``all`` stays."""

    def read(text: str) -> tuple[str, ...]:
        others = {name for each in registered().values() for name in each}
        known, how = (*names, *sorted(others)), f"{ALL} or some of"
        return tuple(
            name if name == ALL else _known(name, known, refusal, how) for name in listed(text)
        )

    return read


_FLAG = re.compile(r"--?[A-Za-z]\S*")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are hpccomm's.

    Parameters
    ----------
    text : str or None
        A docstring, which is the help. Its examples, and what follows them, stand below the flags.
    **given
        As `argparse.ArgumentParser` has them.
    """

    def __init__(self, *, text: str | None = "", **given: Any) -> None:
        about, _, examples = (text or "").partition("Examples\n--------\n")
        super().__init__(
            description=about,
            epilog=examples and f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **given,
        )

    collective = False
    """Whether all ranks of a job ask it, and rank 0 prints the answer."""

    @property
    def form(self) -> str:
        """What a command looks like, in one line: its words and what must be given with a flag."""
        words = [self.prog]
        for action in self._actions:
            what = action.metavar or action.dest.upper()
            if not action.option_strings:
                words.append(f"[{what}]" if action.nargs == "?" else f"{what}")
            elif action.required:
                words.append(f"{action.option_strings[-1]} {what}")
        return " ".join([*words, "[FLAG ...]"])

    def refuse_unknown_flags(self, words: Sequence[str]) -> None:
        """Raise if a word is a flag that the parser does not have.

        argparse itself finds out only when all words are read, and would take the value behind an
        unknown flag for an argument.

        Raises
        ------
        UsageError
            The message names the nearest flag.
        """
        known = self._option_string_actions
        for word in words:
            if word == "--":
                return
            flag = word.partition("=")[0]
            if not _FLAG.fullmatch(flag) or flag in known:
                continue
            # A letter may have its value behind it, as in -n20.
            if not flag.startswith("--") and flag[:2] in known and f"-{flag}" not in known:
                continue
            names = [name for name in known if name.startswith("--")]
            usage = f"usage: {self.form} ({self.prog} --help says more)"
            raise UsageError(
                f"{self.prog} has no flag {flag}; "
                + did_you_mean(f"--{flag.lstrip('-')}", names, usage)
            )

    def separated(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the words that are this parser's flags and their values, and all others.

        Both keep their order. Flags end at ``--``.
        """
        own: list[str] = []
        others: list[str] = []
        rest = iter(words)
        for word in rest:
            name, equals, _ = word.partition("=")
            action = self._option_string_actions.get(name)
            if word == "--":
                others += [word, *rest]
            elif action is None:
                others.append(word)
            else:
                takes_next = action.nargs != 0 and not equals
                own += [word, *itertools.islice(rest, int(takes_next))]
        return own, others

    def refuse_words(self, words: Sequence[str]) -> None:
        """Raise if there are words that no argument takes.

        Raises
        ------
        UsageError
            If there are.
        """
        if words:
            raise UsageError(
                f"{' '.join(words)!r} is more than {self.prog} takes; "
                f"usage: {self.form} ({self.prog} --help says more)"
            )

    def error(self, message: str) -> NoReturn:
        """Raise instead of ending the process.

        Raises
        ------
        UsageError
            Always.
        """
        raise UsageError(f"{message} ({self.prog} --help says more)")

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        if not self.collective or output.speaks():
            output.write(message)


RUN = Flag(
    "--run NAME|INDEX",
    str,
    "the run or training, by name, or by number among the runs: 1 is the first, -1 the last (default: "
    "the last run; without runs, the last training)",
)
JSON = Flag("--json", bool, "print JSON for scripts instead of text")
ADD_RUN = Flag("--output FILE.h5", file, "add the run to this file")
ANY_MACHINE = Flag("--any-machine", bool, "compare runs of machines that differ")
CASE = "--case COLLECTIVE[:SIZE[:TYPE]]"


def refuse(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raise if one of some flags is given.

    Raises
    ------
    UsageError
        Its text is that flag, and then `why`.
    """
    for name in names:
        if (value := getattr(args, name)) is not None and value is not False:  # 0 is given, too
            raise UsageError(f"--{name} {why}")


_AGO = {"d": 1, "w": 7}


def case(text: str) -> tuple[str, int | None, str | None]:
    """Read a case: collective, and perhaps size and type."""
    name, _, rest = text.partition(":")
    size, _, dtype = rest.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(
            f"{text!r} names no collective; give one such as all_reduce:1M"
        )
    return name, units.size(size) if size else None, dtype or None


def moment(text: str) -> datetime:
    """Read a date or time in this place's time zone, or how many days or weeks ago."""
    if re.fullmatch(r"\d+[dw]", text):
        days = int(text[:-1]) * _AGO[text[-1]]
        return datetime.now().astimezone() - timedelta(days=days)
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a date; give one such as 2026-11-01 or 2026-11-01T08:00, or 7d for a week ago"
        ) from None


LOOKED_FOR = (
    Flag(
        CASE, case, "runs that have measured this: all_reduce, all_reduce:1M, all_reduce:1M:float"
    ),
    Flag("--since DATE", moment, "runs started then or later: 2026-11-01, or 7d for a week ago"),
    Flag("--until DATE", moment, "runs started before then"),
    Flag("--host PATTERN", str, "runs on such a host: 'gpu-1*'"),
)
"""Flags that search for runs."""


def query(args: argparse.Namespace) -> "Query":
    """Return the query of the flags in `LOOKED_FOR`."""
    from hpccomm.results.archive import Query

    collective, size, dtype = args.case or (None, None, None)
    return Query(collective, size, dtype, args.since, args.until, args.host)
