"""Which tables a run prints, and what stands in each: decided before anything is measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpccomm import policy, settings
from hpccomm.dtypes import DType
from hpccomm.errors import UsageError
from hpccomm.perf.collectives import COLLECTIVES, Collective
from hpccomm.perf.measure import Case, check_algorithm
from hpccomm.perf.names import NO_OP, NO_TYPE, OPS, TYPES
from hpccomm.perf.options import Options
from hpccomm.perf.readers import ALL
from hpccomm.perf.sizes import Sizes
from hpccomm.policy import AUTO

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

Pair = tuple[str, str]
"""Names of a type and a reduction."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The lines of a table with the same type, reduction and root."""

    type_name: str
    op_name: str
    root: int
    sizes: Sizes

    @property
    def dtype(self) -> DType:
        """The type; of a barrier, which has none, any."""
        return TYPES.get(self.type_name, np.dtype(np.uint8))

    def case(self, collective: Collective, size: int) -> Case:
        """Return the case of one size."""
        return Case(collective, self.dtype, OPS.get(self.op_name), self.root, size)


@dataclass(frozen=True, slots=True)
class Block:
    """One table.

    Attributes
    ----------
    comm : Communicator
        Whose collective is measured.
    collective : Collective
        Which.
    algorithm : str
        As it is printed, and passed to the calls.
    pairs : tuple of Pair
        Types and reductions that are measured.
    """

    comm: "Communicator"
    collective: Collective
    algorithm: str
    pairs: tuple[Pair, ...]

    @property
    def names(self) -> tuple[str, str, str]:
        """Collective, backend and algorithm, as they are printed."""
        return self.collective.name, self.comm.backends["host"] or "", self.algorithm

    def stretches(self, options: Options) -> Iterator[Stretch]:
        """Yield the lines, type by type, reduction by reduction, root by root."""
        if not self.collective.moves:
            yield Stretch(NO_TYPE, NO_OP, -1, Sizes(0, 0, 2, 0))
            return
        for type_name, op_name in self.pairs:
            for root in options.roots(self.collective.name, self.comm.size):
                yield Stretch(type_name, op_name, root, options.sizes)

    def expected_rows(self, options: Options) -> int:
        """Return how many rows there will be; those of one cycle, if there is no end to them."""
        halves = 2 if self.collective.in_place else 1
        return sum(
            halves * stretch.sizes.number(stretch.dtype.itemsize)
            for stretch in self.stretches(options)
        ) * max(1, options.config.run_cycles)


def blocks(
    comms: Sequence["Communicator"], options: Options
) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """Return the tables of a run, and what is skipped because it does not exist. Local.

    Parameters
    ----------
    comms : sequence of Communicator
        One for each backend that was asked for.
    options : Options
        What was asked for.

    Raises
    ------
    UsageError
        If an algorithm applies to nothing that was asked for.
    """
    tables: dict[tuple[str, str, str], Block] = {}
    skipped: dict[str, None] = dict.fromkeys(options.skipped())
    refused: dict[str, str] = {}
    used: set[str] = set()
    every = ALL in (options.algorithms or ())
    for name in options.collectives:
        collective = COLLECTIVES[name]
        pairs = options.pairs(name)
        for comm in comms:
            if options.algorithms is None or not collective.algorithms:
                algorithm = _by_default(comm, collective, pairs)
                block = Block(comm, collective, algorithm, pairs)
                tables.setdefault(block.names, block)
                used.add(algorithm)
                continue
            for algorithm in policy.NAMES if every else options.algorithms:
                if every and algorithm == AUTO:
                    continue  # it takes one of the others
                fails = _failures(comm, collective, pairs, algorithm)
                fit = tuple(pair for pair in pairs if pair not in fails)
                if fit:
                    block = Block(comm, collective, algorithm, fit)
                    tables.setdefault(block.names, block)
                    used.add(algorithm)
                elif every:
                    continue  # what does not apply at all is no part of all
                for pair, why in fails.items():
                    refused.setdefault(algorithm, f"{_spelled(name, pair)}: {why}")
                    part = _spelled(name, pair) if fit else name
                    skipped[f"{algorithm} on {part}"] = None
    for algorithm in options.algorithms or ():
        if algorithm not in used and not every:
            why = refused.get(algorithm, f"{', '.join(options.collectives)} takes no algorithm")
            raise UsageError(f"--algorithm {algorithm}: {why}")
    return tuple(tables.values()), tuple(skipped)


def _failures(
    comm: "Communicator", collective: Collective, pairs: Sequence[Pair], algorithm: str
) -> dict[Pair, str]:
    """Return the pairs that an algorithm does not apply to, and why.

    What applies depends neither on the size nor on the root, so empty arrays and root 0 tell.
    """
    fails: dict[Pair, str] = {}
    if algorithm == AUTO:
        return fails
    for type_name, op_name in pairs:
        try:
            case = Case(collective, TYPES[type_name], OPS.get(op_name), 0, 0)
            check_algorithm(comm, case, algorithm)
        except UsageError as error:
            fails[type_name, op_name] = str(error)
    return fails


def _by_default(comm: "Communicator", collective: Collective, pairs: Sequence[Pair]) -> str:
    """Return the algorithm of a table for which none is asked: the variable's where it applies.

    A table has one algorithm, so the variable holds for a table only if it does for every line.
    """
    variable = str(settings.read("HPCCOMM_ALGORITHM"))
    if variable == AUTO:
        return AUTO
    applies = collective.algorithms and not _failures(comm, collective, pairs, variable)
    return variable if applies else AUTO


def _spelled(name: str, pair: Pair) -> str:
    type_name, op_name = pair
    return f"{name} {type_name}" + (f" {op_name}" if COLLECTIVES[name].reduces else "")
