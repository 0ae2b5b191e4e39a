"""The argument parser of the command line, which raises hpccomm's errors; flags that several verbs have."""

import argparse
import itertools
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from hpccomm import units
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.tools import output
from hpccomm.tools.flag import Flag
from hpccomm.tools.perf import readers

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from hpccomm.results.archive import Query


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
ADD_RUN = Flag("--output FILE.h5", readers.file, "add the run to this file")
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
