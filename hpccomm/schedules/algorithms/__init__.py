"""Algorithms: pure functions from a call to a `Schedule`, of hpccomm and of other packages.

Each is a function ``build(group, call, tuning) -> Schedule``. It returns the programs of the ranks in
`group`: one rank where the schedule runs, all ranks where it is proved, simulated or drawn. To add an
algorithm to hpccomm, write the function and list its name in ``ALGORITHMS``.

Another package registers an algorithm by an entry point in the group ``hpccomm.algorithms``. The entry point's name is
``collective.algorithm``, such as ``all_gather.two_way_ring``. Its value is such a function, or an
`Algorithm`. The entry points are read at the first look-up by name, which takes
some milliseconds. A module is imported when its algorithm is used.

`hpccomm.calls` runs the algorithms. All layers above find them here by name.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from hpccomm.contracts.collectives import REDUCTIONS
from hpccomm.errors import ConfigurationError, UsageError, did_you_mean
from hpccomm.schedules.schedule import Build


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A way to carry out one collective.

    Attributes
    ----------
    build : callable
        Makes the schedule. It consists of messages, or of steps on peers' arrays if the algorithm is `shared`.
    ordered : callable or None
        For a reduction: makes the schedule that folds contributions in rank order, for
        ``deterministic=True``.
    uniform : bool
        Whether all blocks must have one size.
    shared : bool
        Whether all ranks must be able to reach each other's memory.
    direct : callable or None
        Makes the schedule that is used where the ranks of a node reach each other's arrays. Elsewhere `build` is
        used. None for algorithms without such a form.
    staged : callable or None
        For a `shared` algorithm: makes the schedule that is used where ranks reach only each other's scratch, which
        has at most ``tuning.room`` elements. Contributions are folded in rank order.
    """

    build: Build
    ordered: Build | None = None
    uniform: bool = False
    shared: bool = False
    direct: Build | None = None
    staged: Build | None = None

    def by_messages(self, deterministic: bool) -> Build:
        """Return the function that makes the schedule by messages; for `deterministic`, the one in rank order."""
        return self.ordered if deterministic and self.ordered is not None else self.build


@cache
def _found(name: str, *made_of: str) -> Any:
    """Return the attribute of a module in this package; with `made_of`, call it with these arguments.

    An argument that has a dot is the name of an attribute as well.
    """
    module, _, path = name.partition(".")
    build = attrgetter(path)(import_module(f"{__name__}.{module}"))
    return build(*(_found(each) if "." in each else each for each in made_of)) if made_of else build


def _late(name: str, *made_of: str) -> Build:
    """Return an algorithm whose module is imported when it first makes a schedule.

    A program uses few algorithms, and every rank has to open a file for each. With `made_of`, `name` is a
    function that returns the algorithm for these arguments: a collective, or the name of another function.
    """

    def build(*given: Any) -> Any:
        return _found(name, *made_of)(*given)

    build.__qualname__ = "/".join((name, *made_of))
    return build


# Reductions in rank order, named after the algorithm that moves the folded blocks.
_RING = _late("ordered.all_reduce", "ring.all_gather_rounds")
_DOUBLING = _late("ordered.all_reduce", "bruck.all_gather_rounds")
_LINEAR = _late("ordered.all_reduce", "linear.all_gather_rounds")
_REDUCE_BINOMIAL = _late("ordered.reduce", "binomial.gather_rounds")
_REDUCE_LINEAR = _late("ordered.reduce", "linear.gather_rounds")
_REDUCE_SCATTER = _late("ordered.reduce_scatter")


def _named(collective: str, *names: str) -> dict[str, Algorithm]:
    """Return algorithms that reduce nothing: the functions of the collective's name in the modules of these names."""
    return {name: Algorithm(_late(f"{name}.{collective}")) for name in names}


def _shared(collective: str) -> Algorithm:
    """Return the algorithm in shared memory. Its reductions are in rank order."""
    build, among_several = _late(f"shm.{collective}"), _late(f"shm_staged.{collective}")

    return Algorithm(
        build,
        ordered=build if collective in REDUCTIONS else None,
        uniform=collective == "all_to_all",
        shared=True,
        staged=lambda group, *given: (build if group.size == 1 else among_several)(group, *given),
    )


def _in_two_levels(collective: str, ordered: Build | None = None) -> Algorithm:
    """Return the algorithm in two levels, with the form for ranks of a node that reach each other's arrays."""
    messages, direct = (
        _late(f"hierarchical.{each}", collective) for each in ("messages", "direct")
    )
    return Algorithm(messages, ordered=ordered, direct=direct)


ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {
        "all_reduce": {
            "ring": Algorithm(_late("ring.all_reduce"), _RING),
            "recursive_doubling": Algorithm(_late("recursive_doubling.all_reduce"), _DOUBLING),
            "halving_doubling": Algorithm(_late("halving_doubling.all_reduce"), _DOUBLING),
            "linear": Algorithm(_late("linear.all_reduce"), _LINEAR),
            "tree": Algorithm(_late("tree.all_reduce"), _DOUBLING),
            "binomial": Algorithm(_late("binomial.all_reduce"), _DOUBLING),
            "chain": Algorithm(_late("chain.all_reduce"), _RING),
            "shm": _shared("all_reduce"),
            "hierarchical": _in_two_levels("all_reduce", _late("hierarchical.ordered_all_reduce")),
        },
        "broadcast": {
            **_named("broadcast", "tree", "binomial", "chain", "scatter_all_gather"),
            "shm": _shared("broadcast"),
            "hierarchical": _in_two_levels("broadcast"),
        },
        "reduce": {
            "tree": Algorithm(_late("tree.reduce"), _REDUCE_BINOMIAL),
            "binomial": Algorithm(_late("binomial.reduce"), _REDUCE_BINOMIAL),
            "chain": Algorithm(_late("chain.reduce"), _REDUCE_LINEAR),
            "halving_doubling": Algorithm(_late("halving_doubling.reduce"), _REDUCE_BINOMIAL),
            "pairwise": Algorithm(_late("pairwise.reduce"), _REDUCE_LINEAR),
            "shm": _shared("reduce"),
            "hierarchical": _in_two_levels("reduce", _REDUCE_LINEAR),
        },
        "all_gather": {
            **_named("all_gather", "ring", "bruck", "recursive_doubling", "linear"),
            "shm": _shared("all_gather"),
            "hierarchical": _in_two_levels("all_gather"),
        },
        "reduce_scatter": {
            "ring": Algorithm(_late("ring.reduce_scatter"), _REDUCE_SCATTER),
            "halving_doubling": Algorithm(
                _late("halving_doubling.reduce_scatter"), _REDUCE_SCATTER
            ),
            "shm": _shared("reduce_scatter"),
            "hierarchical": _in_two_levels("reduce_scatter", _REDUCE_SCATTER),
        },
        "all_to_all": {
            **_named("all_to_all", "pairwise"),
            "bruck": Algorithm(_late("bruck.all_to_all"), uniform=True),
            **_named("all_to_all", "linear"),
            "shm": _shared("all_to_all"),
            "hierarchical": _in_two_levels("all_to_all"),
        },
        "neighbor_all_to_all": _named("neighbor_all_to_all", "linear"),
        "gather": _named("gather", "linear", "binomial") | {"shm": _shared("gather")},
        "scatter": _named("scatter", "linear", "binomial") | {"shm": _shared("scatter")},
        "scan": {
            "linear": Algorithm(_late("scan.linear"), _late("scan.linear")),
            "binomial": Algorithm(_late("scan.binomial"), _late("scan.pairwise")),
            "pairwise": Algorithm(_late("scan.pairwise"), _late("scan.pairwise")),
            "shm": _shared("scan"),
        },
        "barrier": {
            **_named("barrier", "dissemination"),
            "hierarchical": Algorithm(_late("hierarchical.messages", "barrier")),
        },
    }
)
"""The algorithms of each collective, by name."""


ENTRY_POINTS = "hpccomm.algorithms"

RESERVED = ("auto", "native")
"""Values of ``algorithm=`` that name no schedule of hpccomm."""

EntryPoint = Any
"""An ``importlib.metadata.EntryPoint``. That module loads thirty others, and so is imported only when it is needed."""

AnyAlgorithm = str | Algorithm | Build
"""A value of ``algorithm=``: a name, a function that makes the schedule, or an `Algorithm`."""

Asked = AnyAlgorithm | None
"""The request of a call: a value of ``algorithm=``, or None for the communicator's setting."""


@cache
def registered() -> Mapping[str, Mapping[str, EntryPoint]]:
    """Return the entry points of other packages' algorithms, by collective and name.

    An entry point that cannot be used is left out, with a warning.
    """
    from importlib.metadata import entry_points

    registered: dict[str, dict[str, EntryPoint]] = {each: {} for each in ALGORITHMS}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=_place):
        collective, _, name = point.name.partition(".")
        problem = ""
        if collective not in registered or not name:
            problem = f"its name is not collective.algorithm, with one of {', '.join(ALGORITHMS)}"
        elif name in ALGORITHMS[collective] or name in RESERVED:
            problem = f"hpccomm has {name!r} itself; give the algorithm another name"
        elif name in registered[collective]:
            problem = f"{_place(registered[collective][name])} has that name too; uninstall one"
        if problem:
            message = f"{_place(point)} in the group {ENTRY_POINTS} is not used: {problem}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        else:
            registered[collective][name] = point
    return registered


class Named(Mapping[str, Algorithm]):
    """The algorithms of one collective by name, hpccomm's own first. Those of other packages are imported at look-up.

    Parameters
    ----------
    collective : str
        Name of the collective.
    """

    def __init__(self, collective: str) -> None:
        self._collective = collective
        self._own = ALGORITHMS[collective]

    def __getitem__(self, name: str) -> Algorithm:
        """Return an algorithm.

        Raises
        ------
        ConfigurationError
            If the algorithm of another package cannot be imported, or is not an algorithm.
        """
        others = registered()[self._collective]  # first, since it warns of names that are taken
        return self._own[name] if name in self._own else _loaded(others[name])

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in registered()[self._collective]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._own, *registered()[self._collective]))

    def __len__(self) -> int:
        return len(self._own) + len(registered()[self._collective])


KNOWN: Mapping[str, Named] = {each: Named(each) for each in ALGORITHMS}
"""All algorithms, by collective and name."""


def chosen(collective: str, algorithm: AnyAlgorithm) -> Algorithm:
    """Return the chosen algorithm.

    Raises
    ------
    UsageError
        If the collective has no such algorithm, or it is not a name and not callable.
    """
    if isinstance(algorithm, Algorithm):
        return algorithm
    if isinstance(algorithm, str):
        own = KNOWN[collective]
        if algorithm not in own:
            advice = did_you_mean(algorithm, own, f"there are {', '.join(own)}")
            raise UsageError(f"{collective} has no algorithm {algorithm!r}; {advice}")
        return own[algorithm]
    if not callable(algorithm):
        raise UsageError(
            f"algorithm is {algorithm!r}; give a name, an Algorithm, or a function "
            "build(group, call, tuning) -> Schedule"
        )
    return Algorithm(algorithm, ordered=algorithm)


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
    """Return an entry point in words, with the package that has it."""
    package = f" of {point.dist.name}" if point.dist is not None else ""
    return f"entry point {point.name} = {point.value}{package}"
