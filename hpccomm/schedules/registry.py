"""All algorithms by name: hpccomm's own, and those that other packages register.

A package registers an algorithm by an entry point in the group ``hpccomm.algorithms``. Its name is
``collective.algorithm``, such as ``all_gather.two_way_ring``. Its value is a function
``build(group, call, tuning) -> Schedule``, or an `hpccomm.schedules.algorithms.Algorithm`.

The entry points are read when an algorithm is first asked for by name, and not before: that takes some
milliseconds. An algorithm is imported when it is used.
"""

import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from hpccomm.errors import ConfigurationError
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm
from hpccomm.schedules.schedule import Build

ENTRY_POINTS = "hpccomm.algorithms"

RESERVED = ("auto", "native")
"""Names of ``algorithm=`` that mean something else than an algorithm of hpccomm's kind."""

EntryPoint = Any
"""One of ``importlib.metadata``, which loads thirty modules and so is imported when it is needed."""

AnyAlgorithm = str | Algorithm | Build
"""What ``algorithm=`` takes: a name, or a function that makes the schedule, maybe in an `Algorithm`."""


@cache
def registered() -> Mapping[str, Mapping[str, EntryPoint]]:
    """Return what other packages register, by collective and name.

    An entry point that cannot be used is left out with a warning.
    """
    from importlib.metadata import entry_points

    found: dict[str, dict[str, EntryPoint]] = {each: {} for each in ALGORITHMS}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=_place):
        collective, _, name = point.name.partition(".")
        problem = ""
        if collective not in found or not name:
            problem = f"its name is not collective.algorithm, with one of {', '.join(ALGORITHMS)}"
        elif name in ALGORITHMS[collective] or name in RESERVED:
            problem = f"hpccomm has {name!r} itself; give the algorithm another name"
        elif name in found[collective]:
            problem = f"{_place(found[collective][name])} has that name too; uninstall one"
        if problem:
            message = f"{_place(point)} in the group {ENTRY_POINTS} is not used: {problem}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        else:
            found[collective][name] = point
    return found


class Named(Mapping[str, Algorithm]):
    """The algorithms of one collective by name, hpccomm's own first; others are imported when asked for.

    Parameters
    ----------
    collective : str
        Its name.
    """

    def __init__(self, collective: str) -> None:
        self._collective = collective
        self._own = ALGORITHMS[collective]

    def __getitem__(self, name: str) -> Algorithm:
        """Return an algorithm.

        Raises
        ------
        ConfigurationError
            If another package's cannot be imported, or is no algorithm.
        """
        others = registered()[self._collective]  # first: it warns of others of one's own name
        return self._own[name] if name in self._own else _loaded(others[name])

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in registered()[self._collective]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._own, *registered()[self._collective]))

    def __len__(self) -> int:
        return len(self._own) + len(registered()[self._collective])


KNOWN: Mapping[str, Named] = {each: Named(each) for each in ALGORITHMS}
"""All algorithms, by collective and name."""


def names() -> tuple[str, ...]:
    """Return the names of all algorithms of any collective."""
    return tuple(sorted({name for known in KNOWN.values() for name in known}))


@cache
def _loaded(point: EntryPoint) -> Algorithm:
    """Return the algorithm of an entry point."""
    try:
        loaded = point.load()
    except Exception as error:  # whatever its module raises
        raise ConfigurationError(
            f"algorithm {point.name}: {_place(point)} cannot be imported: {error!r}; mend or uninstall it"
        ) from error
    if isinstance(loaded, Algorithm):
        return loaded
    if not callable(loaded):
        raise ConfigurationError(
            f"algorithm {point.name}: {_place(point)} is {loaded!r}; let it be a function "
            "build(group, call, tuning) that returns a Schedule, or an Algorithm"
        )
    return Algorithm(loaded)


def _place(point: EntryPoint) -> str:
    """Return where an entry point stands, in words."""
    whose = f" of {point.dist.name}" if point.dist is not None else ""
    return f"entry point {point.name} = {point.value}{whose}"
