"""A program of this folder, from its command line to the figures that it prints.

Every program reads its arguments here. One that measures figures of ``promises.toml`` runs by `alone` or
`on_ranks`, which print the figures and write them to a file for ``bench.py``.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hpccomm
from contest import rounds
from contest.jobs import UNAVAILABLE
from contest.promises import Figure
from hpccomm.units import size

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


class Option(NamedTuple):
    """An option of a command line: its value without it, the help, and what reads its text."""

    default: Any
    says: str
    reads: Callable[[str], Any] | None = None


CALLS = Option(None, "calls of a turn (default: a few milliseconds' worth)", int)
"""The option that says how many calls a turn has."""


def parser(doc: str | None, options: Mapping[str, Option]) -> argparse.ArgumentParser:
    """Return the parser of a program: its docstring is the help, and options go by their names."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (default, says, reads) in options.items():
        how: dict[str, Any] = {"type": reads or type(default), "default": default}
        if default is False:
            how = {"action": "store_true"}
        elif default is not None:
            says += " (default %(default)s)"
        dashes = "-" if len(name) == 1 else "--"
        made.add_argument(f"{dashes}{name}", help=says, **how)
    return made


def arguments(
    doc: str | None, figure: str, options: Mapping[str, Option], words: Sequence[str] | None = None
) -> argparse.Namespace:
    """Read the command line of a program that measures figures, by default that of this name."""
    reading = parser(doc, options)
    reading.add_argument(
        "figures", nargs="*", default=[figure], metavar="FIGURE", help=f"such as {figure!r}"
    )
    reading.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    return reading.parse_args(words)


def report(request: argparse.Namespace, found: Mapping[str, Figure]) -> None:
    """Print the figures that were asked for, and write them to a file; those without a value are left out."""
    asked = {name: found[name] for name in request.figures if name in found}
    for name, figure in asked.items():
        print(f"{name:44} {figure.value:9.3f}   {figure.says}", flush=True)
    if request.json is not None:
        request.json.write_text(json.dumps({name: asdict(each) for name, each in asked.items()}))


def alone(
    doc: str | None,
    figure: str,
    measure: Callable[[str, argparse.Namespace], Figure],
    **options: Option,
) -> None:
    """Measure figures one after the other in this process: ``measure(name, request)``."""
    request = arguments(doc, figure, options)
    report(request, {name: measure(name, request) for name in request.figures})


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that measure together.

    Attributes
    ----------
    comm : Communicator
        Of all of them.
    bare : MPI.Intracomm
        For what is not measured, and for peers.
    request : Namespace
        The command line.
    """

    comm: "hpccomm.Communicator"
    bare: "Intracomm"
    request: argparse.Namespace

    def compete(
        self, *contenders: rounds.Call, turns: int | None = None, **how: Any
    ) -> list[rounds.Times]:
        """Let contenders take turns, as many as the command line says: see `rounds.compete`. Collective."""
        return rounds.compete(contenders, self.bare, turns or self.request.rounds, **how)


def on_ranks(
    doc: str | None,
    figure: str,
    measure: Callable[[Sequence[str], Ranks], Mapping[str, Figure]],
    **options: Option,
) -> None:
    """Measure figures on all ranks: ``measure(names, ranks)`` returns those of several names. Collective.

    What it returns on rank 0 is printed.
    """
    request = arguments(doc, figure, options)
    from mpi4py import MPI  # starts MPI

    bare = MPI.COMM_WORLD.Dup()
    with hpccomm.new_comm() as comm:
        found = measure(request.figures, Ranks(comm, bare, request))
        rank = comm.rank
    if rank == 0:
        report(request, found)


def turns(default: int, of: str = "of each") -> Option:
    """Return the option that says how many turns each contender has."""
    return Option(default, f"turns {of}")


def sizes(text: str) -> tuple[int, ...]:
    """Read sizes with commas between them."""
    return tuple(size(each) for each in text.split(","))


def needs_pytorch() -> None:
    """End this process where there is no PyTorch, with the status by which ``bench.py`` knows it."""
    if not find_spec("torch"):
        print("PyTorch is not installed", file=sys.stderr)
        sys.exit(UNAVAILABLE)
