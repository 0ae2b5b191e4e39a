"""A flag or an argument of the command line, described in one place.

Every verb of `hpccomm.tools` lists its flags as such objects. Parser, help and documentation read
them.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


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
        Reads the value from text; raises ``ArgumentTypeError`` or ``ValueError``. Of a switch ``bool``.
    meaning : str
        A phrase for the help.
    field : str
        What takes the value; by default it has the flag's name.
    required : bool
        Whether the flag is mandatory.
    values : int or str
        How many values it takes; more than one are a list. ``"?"``, ``"*"`` and ``"+"`` are those of argparse,
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
    def metavar(self) -> str:
        """Form of the value, such as ``SIZE``; empty for a switch."""
        return next(iter(self.usage.split()[len(self.names) :]), "")

    @property
    def default(self) -> str | None:
        """Text of the default; None without one."""
        return next(iter(self.usage.split()[len(self.names) + 1 :]), None)

    @property
    def help(self) -> str:
        """The meaning, and the default unless the meaning says it or nothing else fits."""
        if self.default in (None, self.metavar) or "(default" in self.meaning:
            return self.meaning
        return f"{self.meaning} (default {self.default})"

    def value(self, text: str) -> Any:
        """Read the value; argparse shows only what this error says."""
        try:
            return self.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    def add(self, group: "argparse._ActionsContainer") -> None:
        """Add the flag to a parser or a group of one."""
        asked: dict[str, Any] = {"help": self.help.replace("%", "%%")}  # argparse formats it
        if self.names:
            dest = self.field or self.names[-1].removeprefix("--").replace("-", "_")
            asked |= {"dest": dest, "required": self.required}
        if not self.metavar:
            group.add_argument(*self.names, action="store_true", **asked)
            return
        if self.values == "append":
            asked["action"] = "append"
        elif self.values != 1:
            asked["nargs"] = self.values
        asked |= {"metavar": self.metavar, "type": self.value, "default": self.default}
        group.add_argument(*(self.names or [self.field]), **asked)


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
