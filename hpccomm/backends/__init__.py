"""Backends move data between ranks: MPI, NCCL, threads of one process, or other packages' ones.

Each is one module, imported on first use. Another package adds a backend by an entry point in the
group ``hpccomm.backends``, whose value is a function like `Opener`. `hpccomm.communicator` opens
them; `hpccomm.contracts` says what they implement.
"""

from collections.abc import Mapping
from importlib import import_module
from threading import local
from typing import TYPE_CHECKING, Protocol

from hpccomm.contracts.backend import Backend
from hpccomm.errors import BackendUnavailable, UsageError, did_you_mean

if TYPE_CHECKING:
    from hpccomm.backends.loopback import World

ENTRY_POINTS = "hpccomm.backends"

FOR_DEVICES = ("nccl",)
"""Names that request a route for device arrays; host arrays then use the backend of ``"auto"``."""

_BUILT_IN = {"mpi": "hpccomm.backends.mpi", "loopback": "hpccomm.backends.loopback"}


class _Seat(local):
    """World and rank of the current thread, if threads of this process are ranks."""

    world: "World | None" = None
    rank: int = 0
    opened: int = 0


seat = _Seat()


class Opener(Protocol):
    """Makes a backend. Every rank of the new communicator calls it."""

    def __call__(self, mpi_comm: object, hints: Mapping[str, str]) -> Backend:
        """Return the backend.

        Parameters
        ----------
        mpi_comm : mpi4py communicator or None
            The ranks; None is all of them.
        hints : mapping of str to str
            `CommOptions.hints`. `refuse_hints` refuses unknown keys.

        Raises
        ------
        BackendUnavailable
            If it cannot run here; the message gives the cause and the remedy.
        """
        ...


def names() -> tuple[str, ...]:
    """Return the names of all backends, hpccomm's own first."""
    from importlib.metadata import entry_points  # loads thirty modules

    others = sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - set(_BUILT_IN))
    return (*_BUILT_IN, *others)


def choices() -> tuple[str, ...]:
    """Return the values that ``backend=`` accepts."""
    return ("auto", *names(), *FOR_DEVICES)


def opener(name: str) -> Opener:
    """Return the function that makes the backend `name`.

    Raises
    ------
    UsageError
        If the name is unknown.
    BackendUnavailable
        If another package's cannot be imported.
    """
    if name in _BUILT_IN:
        open_backend: Opener = import_module(_BUILT_IN[name]).open_backend
        return open_backend
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS, name=name):
        try:
            loaded: Opener = point.load()
        except (ImportError, AttributeError) as error:
            raise BackendUnavailable(
                f"backend {name!r} ({point.value}) cannot be imported: {error}"
            ) from error
        return loaded
    known = ", ".join(repr(each) for each in choices())
    advice = did_you_mean(
        name, choices(), f"give one of {known}, or install the package that has it"
    )
    raise UsageError(f"backend is {name!r}; {advice}")


def refuse_hints(backend: str, hints: Mapping[str, str], known: tuple[str, ...] = ()) -> None:
    """Raise unless the backend knows every key of `hints`.

    Parameters
    ----------
    backend : str
        Its name, for the message.
    hints : mapping of str to str
        The user's.
    known : tuple of str
        Keys that the backend understands.

    Raises
    ------
    UsageError
        The message lists the keys that the backend knows.
    """
    for key in hints:
        if key not in known:
            fits = ", ".join(map(repr, known)) if known else "none"
            raise UsageError(f"options.hints has {key!r}; backend {backend!r} knows {fits}")
