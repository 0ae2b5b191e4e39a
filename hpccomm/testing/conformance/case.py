"""A case of the suite, and how a file of the suite collects its own. All files use it."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from hpccomm.errors import ConfigurationError
from hpccomm.testing.conformance.capabilities import lacks

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

Function = TypeVar("Function", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class Case:
    """One behaviour with one set of parameters.

    Attributes
    ----------
    name : str
        Unique in the suite: ``"reductions.all_reduce[SUM-float32]"``.
    function : callable
        ``function(comm, **arguments) -> None``; every rank calls it, and asserts its own part.
    arguments : mapping
        Keyword arguments of `function`.
    min_size : int
        The fewest ranks on which the behaviour shows.
    needs : tuple of str
        Modules that must be importable beside NumPy.
    uses : tuple of str
        The needed optional abilities of the backend: ``"windows"``, ``"shared memory"``,
        ``"arrivals"``.
    fails : bool
        The behaviour leaves its communicator failed or finalized: it gets a duplicate.
    """

    name: str
    function: Callable[..., None] = field(repr=False)
    arguments: Mapping[str, Any] = field(repr=False)
    min_size: int = 1
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    fails: bool = False

    def missing(self, comm: Communicator | None = None) -> str | None:
        """Return why this machine, or the backend of `comm`, cannot run the case; None when it can.

        Parameters
        ----------
        comm : Communicator, optional
            The one to run on; collective over it. Without it, the backend is assumed to have all
            abilities.

        Returns
        -------
        str or None
            The same on all ranks that share an installation. Imports nothing.
        """
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if absent:
            return f"not installed: {', '.join(absent)}"
        if comm is None:
            return None
        lacking = [why for each in self.uses if (why := lacks(comm, each))]
        return "; ".join(lacking) or None

    def run(self, comm: Communicator) -> None:
        """Run the case; collective over `comm`.

        Parameters
        ----------
        comm : Communicator
            At least `min_size` ranks. Usable afterwards when the case passed on every rank.

        Raises
        ------
        AssertionError
            On each rank that saw something else than it should have.
        ConfigurationError
            Under ``python -O``, which removes the assertions that the suite consists of.
        """
        if not __debug__:
            raise ConfigurationError(
                "the conformance suite consists of assert statements, which python -O removes; "
                "run it without -O (and without PYTHONOPTIMIZE)"
            )
        try:
            self._run(comm)
        except BaseException as error:
            error.add_note(f"in case {self.name}")
            raise

    def _run(self, comm: Communicator) -> None:
        if not self.fails:
            self.function(comm, **self.arguments)
            return
        duplicate = comm.dup()
        self.function(duplicate, **self.arguments)
        # Where ranks gave up at different times, none may go on to the next case before the last
        # has left this one: it could otherwise time out on behalf of a rank that is merely late.
        comm.barrier()
        duplicate.finalize()


class Behaviours:
    """The behaviours of one file: functions that it decorates, expanded to cases.

    Parameters
    ----------
    section : str
        First part of the cases' names.
    uses : tuple of str
        As in `Case`, of all of them.
    """

    def __init__(self, section: str, uses: tuple[str, ...] = ()) -> None:
        self.section = section
        self._uses = uses
        self._cases: list[Case] = []

    def behaviour(
        self,
        *,
        called: str = "",
        min_size: int = 1,
        needs: str | tuple[str, ...] = (),
        fails: bool = False,
        **parameters: Iterable[Any],
    ) -> Callable[[Function], Function]:
        """Decorate a function so that it becomes one case for each combination of `parameters`.

        Parameters
        ----------
        called : str
            Names of parameters in braces stand for their values there, rather than behind it. Without it, the
            function's name.
        min_size, needs, fails
            As in `Case`; one module may be named without a tuple.
        **parameters : iterable
            Values of the function's keyword arguments.

        Returns
        -------
        callable
            Returns its argument unchanged.
        """
        values = {name: tuple(choices) for name, choices in parameters.items()}
        modules = (needs,) if isinstance(needs, str) else needs

        def register(function: Function) -> Function:
            for combination in itertools.product(*values.values()):
                labels = dict(zip(values, map(label, combination), strict=True))
                behind = [word for key, word in labels.items() if f"{{{key}}}" not in called]
                stem = called.format(**labels) or function.__name__
                brackets = f"[{'-'.join(behind)}]" if behind else ""
                self._cases.append(
                    Case(
                        name=f"{self.section}.{stem}{brackets}",
                        function=function,
                        arguments=dict(zip(values, combination, strict=True)),
                        min_size=min_size,
                        needs=modules,
                        uses=self._uses,
                        fails=fails,
                    )
                )
            return function

        return register

    def cases(self) -> tuple[Case, ...]:
        """Return the cases in the order of the file."""
        return tuple(self._cases)


def label(value: object) -> str:
    """Return the word that stands for a parameter in a case's name.

    Parameters
    ----------
    value : object
        A dtype, an operation, a function, or anything with a short `str`.

    Returns
    -------
    str
        For example ``"float32"``, ``"SUM"``, ``"out"``.
    """
    if isinstance(value, tuple) and value and not isinstance(value[0], int):
        return "-".join(map(label, value))
    name = getattr(value, "name", None) or getattr(value, "__name__", None)
    return name if isinstance(name, str) else str(value).replace(" ", "")
