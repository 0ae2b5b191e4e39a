"""A flag of the command line, described in one place."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the command line.

    Attributes
    ----------
    usage : str
        Letter if there is one, name, form of the value, and the default if there is one, separated by
        blanks: ``-b --minbytes SIZE 32M``.
    read : callable
        Reads the value from text; raises ``ArgumentTypeError`` or ``ValueError``.
    meaning : str
        A phrase for the help.
    field : str
        The field of `Config` or `Options` that takes the value; by default it has the flag's name.
    required : bool
        Whether the flag is mandatory.
    values : int
        How many values it takes; more than one are a list.
    """

    usage: str
    read: Callable[[str], Any]
    meaning: str
    field: str = ""
    required: bool = False
    values: int = 1

    @property
    def names(self) -> list[str]:
        """The letter if there is one, and the long name, with their dashes."""
        return [word for word in self.usage.split()[:2] if word.startswith("-")]

    def value(self, text: str) -> Any:
        """Read the value; argparse shows only what this error says."""
        try:
            return self.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    @property
    def metavar(self) -> str:
        """Form of the value, such as ``SIZE``."""
        return self.usage.split()[len(self.names)]

    @property
    def default(self) -> str | None:
        """Text of the default; None without one."""
        return next(iter(self.usage.split()[len(self.names) + 1 :]), None)

    @property
    def help(self) -> str:
        """The meaning, and the default unless the meaning says it or nothing else fits."""
        if self.default in (None, self.metavar) or "(default " in self.meaning:
            return self.meaning
        return f"{self.meaning} (default {self.default})"


def add_flags(parser: argparse.ArgumentParser, heading: str, flags: Sequence[Flag]) -> None:
    """Add flags to a parser, under a heading of the help; without one, under that of all flags."""
    group = parser.add_argument_group(heading) if heading else parser
    for flag in flags:
        group.add_argument(
            *flag.names,
            dest=flag.field or flag.names[-1].removeprefix("--"),
            metavar=flag.metavar,
            type=flag.value,
            default=flag.default,
            required=flag.required,
            nargs=None if flag.values == 1 else flag.values,
            help=flag.help.replace("%", "%%"),  # argparse formats it
        )
