"""A case of the suite, the collection of a file's cases, and assertions. All files of the suite use it."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from hpccomm.communicator import Communicator
from hpccomm.dtypes import NARROW
from hpccomm.errors import ConfigurationError

Function = TypeVar("Function", bound=Callable[..., None])

Ability = Literal["windows", "shared memory", "arrivals"]
"""An ability that a correct backend may lack: one-sided communication (`Backend.window`), access of a node's ranks to
each other's memory (`Transport.shared`), or messages from any sender (``Backend.arrivals``)."""


@dataclass(frozen=True, slots=True)
class Case:
    """One behaviour with one set of parameters.

    Attributes
    ----------
    name : str
        Unique in the suite: ``"collectives.reductions[all_reduce-SUM]"``.
    function : callable
        ``function(comm, **arguments) -> None``; every rank calls it, and asserts what that rank sees.
    arguments : mapping
        Keyword arguments of `function`.
    min_size : int
        The smallest number of ranks on which the behaviour shows.
    uses : Ability or None
        The optional ability of the backend that the case needs: ``"windows"``, ``"shared memory"`` or ``"arrivals"``.
    fails : bool
        Whether the behaviour leaves its communicator failed or finalized. If so, it runs on a duplicate.
    """

    name: str
    function: Callable[..., None] = field(repr=False)
    arguments: Mapping[str, Any] = field(repr=False)
    min_size: int = 1
    uses: Ability | None = None
    fails: bool = False

    def missing(self, comm: Communicator) -> str | None:
        """Return why the backend of `comm` cannot run the case; None when it can. Collective over `comm`.

        Blocks for ``"windows"``: only making a window shows whether the backend has them.

        Returns
        -------
        str or None
            The same on all ranks.
        """
        backend = comm._core.backend  # noqa: SLF001 (the backend is under test)
        absent = ""
        if self.uses == "shared memory" and backend.collectives.shared is None:
            absent = "Transport.shared is None"
        elif self.uses == "arrivals" and getattr(backend, "arrivals", None) is None:
            absent = "it has no arrivals"
        elif self.uses == "windows":
            window = backend.window()
            if window is None:
                absent = "Backend.window returns None"
            else:
                window.free()
        return f"backend {backend.name!r}: {absent}" if absent else None

    def run(self, comm: Communicator) -> None:
        """Run the case; collective over `comm`.

        Parameters
        ----------
        comm : Communicator
            Has at least `min_size` ranks. It is usable afterwards if the case passed on every rank.

        Raises
        ------
        AssertionError
            On each rank that saw something wrong.
        ConfigurationError
            Under ``python -O``, which removes the assertions that the suite consists of.
        """
        if not __debug__:
            raise ConfigurationError(
                "the conformance suite consists of assert statements, which python -O removes; "
                "run it without -O (and without PYTHONOPTIMIZE)"
            )
        try:
            if not self.fails:
                self.function(comm, **self.arguments)
                return
            duplicate = comm.dup()
            self.function(duplicate, **self.arguments)
            # Where ranks gave up at different times, none may go on to the next case before the last
            # has left this one: it could otherwise time out on behalf of a rank that is merely late.
            comm.barrier()
            if comm._core.backend.side is None:  # noqa: SLF001 (the backend is under test)
                duplicate.abort()  # where ranks do not hear of a failure, `finalize` waits for its deadline
            duplicate.finalize()
        except BaseException as error:
            error.add_note(f"in case {self.name}")
            raise


class Behaviours:
    """The behaviours of one file: the decorated functions, expanded to cases.

    Parameters
    ----------
    section : str
        First part of the cases' names.
    uses : Ability, optional
        As in `Case`; the same for all of the file's cases.

    Attributes
    ----------
    cases : list of Case
        In the order of the file.
    """

    def __init__(self, section: str, uses: Ability | None = None) -> None:
        self.section = section
        self._uses = uses
        self.cases: list[Case] = []

    def behaviour(
        self,
        *,
        min_size: int = 1,
        fails: bool = False,
        **parameters: Iterable[Any],
    ) -> Callable[[Function], Function]:
        """Decorate a function so that it becomes one case for each combination of `parameters`.

        Parameters
        ----------
        min_size, fails
            As in `Case`.
        **parameters : iterable
            Values of the function's keyword arguments.

        Returns
        -------
        callable
            Returns its argument unchanged.
        """
        values = {name: tuple(choices) for name, choices in parameters.items()}

        def register(function: Function) -> Function:
            for combination in itertools.product(*values.values()):
                brackets = f"[{'-'.join(map(label, combination))}]" if values else ""
                name = f"{self.section}.{function.__name__}{brackets}"
                arguments = dict(zip(values, combination, strict=True))
                self.cases.append(Case(name, function, arguments, min_size, self._uses, fails))
            return function

        return register


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


Array = npt.NDArray[Any]


def equal(actual: object, expected: Array, what: str = "", *, rtol: float = 0.0) -> None:
    """Assert that `actual` is an array of `expected`'s shape, dtype and values.

    Parameters
    ----------
    actual : object
        The returned or written array.
    expected : ndarray
        NaN equals NaN. Structured dtypes compare field by field.
    what : str
        The subject, for the message.
    rtol : float
        Relative tolerance; 0 requires equal values. A case that gives more says why.
    """
    note = f"{what or 'result'}: "
    assert isinstance(actual, np.ndarray), f"{note}{type(actual).__name__}, expected an array"
    assert actual.dtype == expected.dtype, f"{note}dtype {actual.dtype}, not {expected.dtype}"
    assert actual.shape == expected.shape, f"{note}shape {actual.shape}, not {expected.shape}"
    if actual.tobytes() == expected.tobytes():
        return
    if expected.dtype.names is not None:
        np.testing.assert_array_equal(actual, expected, err_msg=note)
        return
    # numpy.testing does not know bfloat16 and float8; both widen to float32 without loss.
    wide = np.dtype(np.float32) if expected.dtype in NARROW else expected.dtype
    left, right = actual.astype(wide, copy=False), expected.astype(wide, copy=False)
    if rtol:
        np.testing.assert_allclose(left, right, rtol=rtol, atol=0, err_msg=note)
    else:
        np.testing.assert_array_equal(left, right, err_msg=note)


def same_bits(actual: Array, expected: Array, what: str = "") -> None:
    """Assert that two arrays hold the same bytes, and have the same shape and dtype.

    Parameters
    ----------
    actual, expected : ndarray
        C-contiguous.
    what : str
        The subject, for the message.
    """
    equal(actual, expected, what)
    assert actual.tobytes() == expected.tobytes(), f"{what}: {actual!r}, not {expected!r}"


PATIENCE = 20.0
"""Seconds after which something that should happen by itself counts as not happening."""

SOON = 5.0
"""Seconds within which a failure must show; many, for machines that do other work."""


def happens(condition: Callable[[], object], what: str, within: float = PATIENCE) -> None:
    """Wait until `condition` is true, and assert that it becomes so within some seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not after {within:g} s: {what}"
        time.sleep(0.001)


@contextmanager
def takes(most: float = SOON, least: float = 0.0) -> Iterator[None]:
    """Assert that the block takes at least `least` and less than `most` seconds."""
    before = time.monotonic()
    yield
    took = time.monotonic() - before
    assert least <= took < most, f"took {took:.3f} s, not from {least:g} to {most:g} s"


@contextmanager
def raises(error: type[BaseException], *words: str) -> Iterator[list[BaseException]]:
    """Assert that the block raises `error` with a message that holds each of `words`.

    Parameters
    ----------
    error : type
        The error's class, or a base class of it.
    *words : str
        Words that the message must hold; upper and lower case are equal.

    Yields
    ------
    list
        Empty; holds the error after the block.
    """
    caught: list[BaseException] = []
    try:
        yield caught
    except error as exception:
        text = str(exception)
        absent = [word for word in words if word.lower() not in text.lower()]
        assert not absent, f"the message lacks {absent}: {type(exception).__name__}: {text}"
        caught.append(exception)
        return
    raise AssertionError(f"{error.__name__} was not raised")
