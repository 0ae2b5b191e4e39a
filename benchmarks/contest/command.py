"""The arguments that the commands share, and a run from the first case to the last file."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contest import picture, record, results, tables
from contest.cases import COLLECTIVES, Case
from contest.contenders import COPY, GLOO, OF_EMPTY, PLAN, SETTINGS, Contender
from contest.gloo import gloo
from contest.machine import machine
from contest.race import Limit, race
from contest.results import Line
from hpccomm.bench.perf import facts, readers
from hpccomm.dispatch import policy
from hpccomm.drawing import vega
from hpccomm.drawing.files import check_place, save
from hpccomm.results import origin
from hpccomm.units import size

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpccomm import Communicator
    from hpccomm.results.schema import RunInfo


def add_arguments(
    parser: argparse.ArgumentParser, *, collectives: str, names: str, sizes: str, rounds: int
) -> None:
    """Add the arguments that the commands share, with these defaults; `names` are contenders."""
    parser.add_argument(
        "--collectives",
        type=_collectives,
        default=collectives,
        metavar="NAME[,NAME...]",
        help=f"some of {', '.join(COLLECTIVES)} (default {collectives})",
    )
    parser.add_argument(
        "--sizes",
        type=lambda text: tuple(size(part) for part in readers.listed(text)),
        default=sizes,
        metavar="SIZE[,SIZE...]",
        help=f"bytes, with K, M or G (default {sizes})",
    )
    parser.add_argument(
        "--contenders",
        type=_contenders,
        default=names,
        metavar="NAME[,NAME...]",
        help=f"beside mpi4py; the ways listed above, or hpccomm's algorithms (default {names})",
    )
    parser.add_argument(
        "--rounds",
        type=readers.integer(1),
        default=rounds,
        metavar="N",
        help=f"turns of each contender (default {rounds})",
    )
    parser.add_argument(
        "--out-of-place",
        action="store_true",
        help="give all_reduce, reduce and scan an output of its own",
    )
    parser.add_argument("--output", type=Path, metavar="FILE.h5", help="add the run to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw it, as SVG or PNG")
    parser.add_argument("--rst", type=Path, metavar="FILE", help="write it as reStructuredText")


def _collectives(text: str) -> tuple[str, ...]:
    names = readers.listed(text)
    for name in names:
        if name not in COLLECTIVES:
            raise argparse.ArgumentTypeError(
                f"{name!r} has no contenders; give some of {', '.join(COLLECTIVES)}"
            )
    return names


def _contenders(text: str) -> tuple[str, ...]:
    names = readers.listed(text)
    ways = (GLOO, COPY, PLAN, *OF_EMPTY, *SETTINGS, *policy.NAMES)
    for name in names:
        if name not in ways:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no contender; give some of {', '.join(ways)}"
            )
    return names


def gloo_where_it_is(
    stack: ExitStack, bare: "Intracomm", interface: str, skipped: dict[str, str]
) -> list[Contender]:
    """Return Gloo as a contender until the stack is left, or note why not. Collective."""
    try:
        return [stack.enter_context(gloo(bare, interface))]
    except ImportError as error:
        skipped[GLOO] = f"PyTorch cannot be loaded ({error})"
    except LookupError as error:
        skipped[GLOO] = str(error)
    return []


@dataclass(frozen=True, slots=True)
class Contest:
    """A run: who measures what, and where it is written. Every rank makes one.

    Attributes
    ----------
    comm : Communicator
        Names the ranks and nodes.
    bare : MPI.Intracomm
        For what is not measured.
    contenders : sequence of Contender
        The same on all ranks, the library's own calls among them.
    limit : callable
        ``limit(case, results)``.
    limit_name : str
        What that is.
    arguments : Namespace
        As a parser with `add_arguments` read them.
    skipped : mapping of str to str
        Contenders that are missing, and why.
    """

    comm: "Communicator"
    bare: "Intracomm"
    contenders: Sequence[Contender]
    limit: Limit
    limit_name: str
    arguments: argparse.Namespace
    skipped: dict[str, str]

    def run(self) -> int:
        """Measure everything, and write it. Collective; returns the exit status on every rank."""
        request, root = self.arguments, self.comm.rank == 0
        info = self._info()
        with ExitStack() as stack:
            writer: Any = None
            if root:
                if request.plot is not None:
                    check_place(request.plot)
                    vega.library()  # raises before the work where it is missing
                if request.output is not None:
                    from hpccomm.results.writer import Writer

                    writer = stack.enter_context(Writer(request.output, info))
                print("".join(f"# {name}: {value}\n" for name, value in self._facts().items()))
            done: list[list[Line]] = []
            for name in request.collectives:
                lines = [self._measure(name, nbytes) for nbytes in request.sizes]
                done.append(lines)
                if root:
                    print(tables.text(lines, self.contenders), flush=True)
                    if writer is not None:
                        record.write(writer, lines, self.contenders)
        every = [line for lines in done for line in lines]
        if root:
            for finding in results.findings(every):
                print(f"# {finding}")
            self._draw(done)
        wrong = any(result.wrong for line in every for result in line.results.values())
        return 1 if wrong else 0

    def _info(self) -> "RunInfo":
        """Return what a results file says of the run. Collective."""
        config = record.config(self.arguments.sizes, self.arguments.rounds)
        skipped = tuple(f"{name}: {why}" for name, why in self.skipped.items())
        info = facts.run_info(self.comm, config, skipped)
        peers = {one.backend: one.algorithm for one in self.contenders if one.name == GLOO}
        return replace(info, arguments=tuple(sys.argv), versions={**info.versions, **peers})

    def _facts(self) -> dict[str, str]:
        """Return what the run is made with, in words."""
        from mpi4py import MPI

        comm = self.comm
        library, version = MPI.get_vendor()
        gloos = [one.algorithm for one in self.contenders if one.name == GLOO]
        said = {
            "library": f"{library} {'.'.join(map(str, version))} through mpi4py",
            "ranks": f"{comm.size} rank{'s' * (comm.size > 1)} on "
            f"{comm.num_nodes} node{'s' * (comm.num_nodes > 1)}",
            "machine": machine(),
            "date": f"{datetime.now().astimezone():%Y-%m-%d}",
            "with": ", ".join([*(f"{n} {v}" for n, v in origin.versions().items()), *gloos]),
            "figures": f"medians of {self.arguments.rounds} rounds, slowest rank; the limit is "
            f"{self.limit_name}",
        }
        said |= {f"no {name}": why for name, why in self.skipped.items()}
        return said

    def _measure(self, collective: str, nbytes: int) -> Line:
        """Check and measure every contender on one case. Collective."""
        rank, ranks, apart = self.comm.rank, self.comm.size, self.arguments.out_of_place
        case = Case(collective, nbytes, rank, ranks, apart=apart)
        rounds = self.arguments.rounds
        return race(case, self.contenders, self.bare, rounds, limit=self.limit)

    def _draw(self, done: Sequence[Sequence[Line]]) -> None:
        """Write the page and the picture that the command line names. On rank 0."""
        request, said = self.arguments, self._facts()
        if request.rst is not None:
            body = tables.restructured(done, self.contenders)
            request.rst.write_text(f"{tables.fields(said)}\n{body}")
        if request.plot is not None:
            title = ", ".join(said[name] for name in ("library", "ranks", "machine", "date"))
            save(vega.svg(picture.draw(done, self.contenders, title)), request.plot)
