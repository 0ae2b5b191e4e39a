"""Flags of the command line: the description of a flag, the parser, the readers of values, and flags of several verbs.

Each verb of `hpccomm.tools` lists its flags as `Flag` and `FlagGroup`. The parser, the help and the documentation
read that list. A reader makes a value of text, or raises an error that names the possible values.
"""

import argparse
import itertools
import math
import re
import shlex
import tomllib
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hpccomm import units
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.schedules.algorithms import registered
from hpccomm.tools import output
from hpccomm.units import seconds, size

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from hpccomm.results.archive import Query


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the command line, or an argument that has no name.

    Attributes
    ----------
    usage : str
        Letter if there is one, name, form of the value, and the default if there is one, separated by
        blanks: ``-b --minbytes SIZE 32M``. Without a value it is a switch: ``--json``. Without a name it is an
        argument: ``FILE``.
    read : callable
        Reads the value from text; raises ``ArgumentTypeError`` or ``ValueError``. It is ``bool`` for a switch.
    meaning : str
        A phrase for the help.
    field : str
        Name of the argument that holds the value; by default the flag's name.
    required : bool
        Whether the flag is mandatory.
    values : int or str
        Number of values that it takes; several values are a list. ``"?"``, ``"*"`` and ``"+"`` are those of argparse,
        ``"append"`` lets the flag be given several times.
    """

    usage: str
    read: Callable[[str], Any]
    meaning: str
    field: str = ""
    required: bool = False
    values: int | str = 1

    @property
    def names(self) -> list[str]:
        """The letter if there is one, and the long name, with their dashes."""
        return [word for word in self.usage.split()[:2] if word.startswith("-")]

    @property
    def takes(self) -> str:
        """Name of the argument that holds the value: `field`, or the name of the flag."""
        return self.field or self.names[-1].removeprefix("--").replace("-", "_")

    @property
    def metavar(self) -> str:
        """Form of the value, such as ``SIZE``; empty for a switch."""
        return next(iter(self.usage.split()[len(self.names) :]), "")

    @property
    def default(self) -> str | None:
        """Text of the default; None without one."""
        return next(iter(self.usage.split()[len(self.names) + 1 :]), None)

    @property
    def help(self) -> str:
        """The meaning, and the default unless the meaning states it or it is the only value."""
        if self.default in (None, self.metavar) or "(default" in self.meaning:
            return self.meaning
        return f"{self.meaning} (default {self.default})"

    def value(self, text: str) -> Any:
        """Read the value. argparse shows the text of an ``ArgumentTypeError`` alone."""
        try:
            return self.read(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    def add(self, group: "argparse._ActionsContainer") -> argparse.Action:
        """Add the flag to a parser or a group of one; return what argparse keeps of it."""
        asked: dict[str, Any] = {"help": self.help.replace("%", "%%")}  # argparse formats it
        if self.names:
            asked |= {"dest": self.takes, "required": self.required}
        if not self.metavar:
            return group.add_argument(*self.names, action="store_true", **asked)
        if self.values == "append":
            asked["action"] = "append"
        elif self.values != 1:
            asked["nargs"] = self.values
        asked |= {"metavar": self.metavar, "type": self.value, "default": self.default}
        return group.add_argument(*(self.names or [self.field]), **asked)


@dataclass(frozen=True, slots=True)
class FlagGroup:
    """Flags under a heading of the help, or flags that exclude each other.

    Attributes
    ----------
    flags : sequence of Flag
    heading : str
    exclusive : bool
        Whether at most one of them may be given.
    required : bool
        Whether one of those must be given.
    """

    flags: Sequence[Flag]
    heading: str = ""
    exclusive: bool = False
    required: bool = False

    def add(self, parser: "argparse._ActionsContainer") -> None:
        """Add the flags to a parser."""
        if self.exclusive:
            add_flags(parser.add_mutually_exclusive_group(required=self.required), self.flags)
        else:
            add_flags(parser.add_argument_group(self.heading), self.flags)


def add_flags(parser: "argparse._ActionsContainer", flags: "Sequence[Flag | FlagGroup]") -> None:
    """Add flags, and groups of them, to a parser."""
    for each in flags:
        each.add(parser)


def single(flags: "Iterable[Flag | FlagGroup]") -> Iterator[Flag]:
    """Yield flags one by one, also those of groups."""
    for each in flags:
        yield from single(each.flags) if isinstance(each, FlagGroup) else (each,)


_FLAG = re.compile(r"--?[A-Za-z]\S*")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are hpccomm's.

    Parameters
    ----------
    text : str or None
        A docstring, which is the help. Its examples, and all text after them, stand below the flags.
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
        """The form of a command, in one line: its words, and the flags that must be given."""
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

        argparse itself raises only when all words are read, and would take the value of an unknown flag for an
        argument.

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
                values = 1 if action.nargs is None else int(action.nargs)
                own += [word, *itertools.islice(rest, 0 if equals else values)]
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
        if "required" in message and self.epilog:
            example = next(line for line in self.epilog.splitlines() if self.prog in line).strip()
            message += f"; for example: {example.partition('  ')[0]}"
        raise UsageError(f"{message} ({self.prog} --help says more)")

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        if not self.collective or output.speaks():
            output.write(message)


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


_AGO = {"d": 1, "w": 7}


def case(text: str) -> tuple[str, int | None, str | None]:
    """Read a case: a collective, with or without size and type."""
    name, _, rest = text.partition(":")
    size, _, dtype = rest.partition(":")
    if not name:
        raise ArgumentTypeError(f"{text!r} names no collective; give one such as all_reduce:1M")
    return name, units.size(size) if size else None, dtype or None


def moment(text: str) -> datetime:
    """Read a date or time in the local time zone, or a number of days or weeks before now."""
    if re.fullmatch(r"\d+[dw]", text):
        days = int(text[:-1]) * _AGO[text[-1]]
        return datetime.now().astimezone() - timedelta(days=days)
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not a date; give one such as 2026-11-01 or 2026-11-01T08:00, or 7d for a week ago"
        ) from None


def table(
    package: str,
    readers: Mapping[str, Callable[[str], Any]] = MappingProxyType({}),
    words: Mapping[str, str] = MappingProxyType({}),
    file: str = "flags.toml",
) -> dict[str, tuple[Flag, ...]]:
    """Return the flags of a file of TOML, by the heading under which the help lists them.

    A row has the fields of `Flag`. Its value is read by one of these:

    - ``read``, the name of a reader;
    - ``range``, an integer of it;
    - ``only``, this value alone, and ``why``;
    - ``kind``, a noun for the names in the braces of ``usage``;
    - nothing, for a switch or for any text.

    Parameters
    ----------
    package : str
        The folder of the file.
    readers : mapping of str to callable, optional
        Readers of this verb; all others are of this module.
    words : mapping of str to str, optional
        Texts for the names in braces of the meanings.
    file : str, optional
        The name of the file.
    """

    def reader(row: Mapping[str, Any]) -> Callable[[str], Any]:
        if "range" in row:
            return integer(*row["range"])
        if "only" in row:
            return only(row["only"], row["why"])
        if "kind" in row:
            return one_of(re.findall(r"[^{},]+", row["usage"].split()[1]), row["kind"])
        if "read" in row:
            read: Callable[[str], Any] = readers.get(row["read"]) or globals()[row["read"]]
            return read
        return str if Flag(row["usage"], str, "").metavar else bool

    def flag(row: Mapping[str, Any]) -> Flag:
        meaning, more = (
            row["meaning"].format_map(words),
            row.keys() & {"field", "values", "required"},
        )
        return Flag(row["usage"], reader(row), meaning, **{name: row[name] for name in more})

    text = resources.files(package).joinpath(file).read_text("utf-8")
    return {heading: tuple(map(flag, rows)) for heading, rows in tomllib.loads(text).items()}


RUN = Flag(
    "--run NAME|INDEX",
    str,
    "the run or training, by name, or by number among the runs: 1 is the first, -1 the last (default: "
    "the last run; without runs, the last training)",
)
JSON = Flag("--json", bool, "print JSON for scripts instead of text")
ANY_MACHINE = Flag("--any-machine", bool, "compare runs of machines that differ")
CASE = "--case COLLECTIVE[:SIZE[:TYPE]]"


LOOKED_FOR = (
    Flag(
        CASE, case, "runs that have measured this: all_reduce, all_reduce:1M, all_reduce:1M:float"
    ),
    Flag("--since DATE", moment, "runs started then or later: 2026-11-01, or 7d for a week ago"),
    Flag("--until DATE", moment, "runs started before then"),
    Flag("--host PATTERN", str, "runs on such a host: 'gpu-1*'"),
)
"""Flags that search for runs."""


def refuse(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raise if one of some flags is given.

    Raises
    ------
    UsageError
        The text is the flag, and then `why`.
    """
    for name in names:
        if (value := getattr(args, name)) is not None and value is not False:  # 0 is given, too
            raise UsageError(f"--{name} {why}")


def query(args: argparse.Namespace) -> "Query":
    """Return the query of the flags in `LOOKED_FOR`."""
    from hpccomm.results.archive import Query

    collective, size, dtype = args.case or (None, None, None)
    return Query(collective, size, dtype, args.since, args.until, args.host)
