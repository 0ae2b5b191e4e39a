"""The fit of a network to a stored run, so that its calls take as long as the run's: ``hpccomm simulate --like``.

The price of a call is linear in the parameters along its critical path: each message costs a latency, and each
byte the time of a port. `hpccomm.schedules.cost.rounds.linear_price` returns the multiples of the parameters,
which are the derivatives that SciPy's least squares need. The error of a row is relative, since times differ by many
powers of ten. No parameter is negative. The ports, the links that they share, and the time of a port for each
message (`gap`) come from the description, and are not fitted.

`hpccomm.tools.simulate.simulate` calls it with a run, and prints its report.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.contracts.signature import Signature
from hpccomm.errors import ResultsError, UsageError
from hpccomm.results.reader import Run, WholeSamples
from hpccomm.results.schema import Row
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network import Level, Network
from hpccomm.schedules.cost.rounds import PARAMETERS, linear_price
from hpccomm.schedules.proof import signatures
from hpccomm.schedules.schedule import Tuning
from hpccomm.settings import DEFAULT_SEGMENT
from hpccomm.tools.perf.patterns import TYPES
from hpccomm.units import few

CHANNELS = 2
"""Segments of a call that are moved at the same time, unless the run's facts give another number."""


class Measurement(NamedTuple):
    """One measured time: a row, its call on one rank, the parameters of its algorithm, and seconds."""

    row: Row
    call: Signature
    tuning: Tuning
    seconds: float


def measurements(run: Run, network: Network) -> tuple[list[Measurement], Counter[str], list[str]]:
    """Choose the rows of hpccomm's own algorithms, whose prices on `network` are known.

    Returns
    -------
    list of Measurement
        The chosen rows, each with the median over its repetitions of the slowest rank's time, or with the
        printed time if no repetition was kept.
    Counter of str
        Number of rows that cannot be used, by the reason.
    list of str
        Damaged samples, a line each.
    """
    facts = run.info.simulation
    segment = facts.get("segment") or run.info.environment.get("HPCCOMM_SEGMENT")
    nbytes = int(segment.split()[0]) if segment else DEFAULT_SEGMENT
    channels = int(facts.get("channels", CHANNELS))
    used, others, samples = [], Counter[str](), WholeSamples(run)
    for index, row in enumerate(run.rows):
        kept, seconds = samples(index), math.nan
        if kept is not None:
            seconds = float(np.median(kept.max(axis=1))) if len(kept) else row.time * 1e-6
        why = _unusable(row, seconds)
        if why:
            others[why] += 1
            continue
        root, dtype = max(row.root, 0), TYPES.get(row.dtype, np.dtype(np.uint8))
        # A reduction takes equally long with any operation.
        calls = signatures(
            row.collective, network.ranks, row.count, root=root, in_place=row.in_place, dtype=dtype
        )
        tuning = Tuning(max(1, nbytes // dtype.itemsize), channels, network.topology())
        used.append(Measurement(row, calls[root], tuning, seconds))
    return used, others, samples.damage()


def _unusable(row: Row, seconds: float) -> str:
    """Return why a row cannot be used for the fit; empty if it can."""
    what = DESCRIPTIONS.get(row.collective)
    if what is None or row.algorithm not in ALGORITHMS[row.collective]:
        return f"{row.collective} by {row.algorithm}: what it does is not known"
    if row.wrong > 0:
        return "its result was wrong"
    if what.peers:
        return f"{row.collective}: ranks send different amounts"
    if not row.count and what.moves:
        return "size 0: nothing is sent"
    return "" if seconds > 0 else "took no time, or its samples are damaged"


Floats = NDArray[np.float64]

GUESS = 1e-6, 5e9
"""Latency and bandwidth from which a fit begins."""

APART = 0.03
"""A parameter can be fitted only if the part of its column that the other columns do not explain is longer
than this fraction of the column."""

NOTHING = 1e-6
"""A parameter is zero if it makes up less than this part of every row's time."""

NAMES = (*PARAMETERS[:-1], "overhead", "copy")
"""The parameters, in order of priority: if two cannot be distinguished, only the first is fitted."""

_OF_RANKS = "reduce", "overhead", "copy"
_TIMES = "latency", "overhead"
"""Ends of the names of parameters in seconds. The other parameters are in bytes a second, fitted as seconds a byte."""


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A network that fits measured times.

    Attributes
    ----------
    network : Network
        The network with the fitted parameters, on the ranks of the measurements.
    errors : dict of str to float
        The relative standard error of each fitted parameter; NaN if the parameter is zero, or if there
        are too few rows.
    blank : dict of str to str
        The reason for which each of the other parameters was not fitted. Their values are those of the description.
    residuals : ndarray of float64, shape (measurements,)
        Price over measured time, minus 1.
    """

    network: Network
    errors: dict[str, float]
    blank: dict[str, str]
    residuals: Floats


def like(run: Run, described: Network | None, ranks: int | None) -> tuple[Network, str, list[str]]:
    """Fit a network to a run. Local.

    Parameters
    ----------
    run : Run
        The stored run.
    described : Network or None
        A description with the ports, and with the parameters that the run does not determine. With None,
        each rank has a port, and such parameters cost nothing.
    ranks : int or None
        Number of ranks of the result; None for that of the run.

    Returns
    -------
    Network
        The fitted network, with that number of ranks.
    str
        The report, as lines of comment: the fitted parameters and their errors.
    list of str
        The damaged parts of the run, which were left out.

    Raises
    ------
    ResultsError
        If the run has too few rows of hpccomm's own algorithms, or its ranks do not fill one node after
        the other.
    UsageError
        If the description is of other nodes, or the result needs several nodes and nothing tells the
        connection between them.
    """
    start = _start(run, described)
    used, others, damage = measurements(run, start)
    result = fit(start, used)
    untold = ", ".join(name for name in result.blank if name not in _OF_RANKS)
    if untold and described is None:
        raise ResultsError(
            f"the {len(used)} rows of own algorithms of {run.name} do not tell {untold}; measure more sizes "
            "and algorithms, or give --cluster with a description"
        )
    report = "".join(f"# {line}\n" for line in _report(run, used, others, result))
    return result.network.resized(ranks or start.ranks), report, damage


def _start(run: Run, described: Network | None) -> Network:
    """Return a network of the ranks of a run, from which the fit begins."""
    places = [(rank.group, rank.node - run.info.ranks[0].node) for rank in run.info.ranks]
    ranks, per_node = len(places), places.count(places[0])
    if places != [(places[0][0], index // per_node) for index in range(ranks)]:
        raise ResultsError(
            f"the ranks of {run.name} are in (group, node) {few(places, 8)}; prices are known where one "
            "group fills nodes one after the other, with equally many ranks each: measure ranks placed so"
        )
    name = f"like {run.name} of {run.path.name}"
    if described is not None:
        if min(described.ranks_per_node, ranks) != per_node:
            raise UsageError(
                f"{described.name} has {described.ranks_per_node} ranks on a node, and {run.name} "
                f"{per_node}; give a description of the same nodes, or none"
            )
        name = f"{described.name} {name}"
        return replace(described.resized(ranks), name=name, description=name)
    level = Level(*GUESS, ports=per_node)
    inner, across = level if per_node > 1 else None, level if ranks > per_node else None
    return Network(name, ranks, per_node, math.inf, inner, across, description=name)


def fit(network: Network, rows: Sequence[Measurement]) -> Fit:
    """Fit the parameters of a network. Local.

    Parameters
    ----------
    network : Network
        The ranks, and the values of parameters that the measurements do not determine.
    rows : sequence of Measurement
        Measurements on all ranks of the network.

    Raises
    ------
    ResultsError
        If there are too few measurements.
    """
    from scipy.optimize import least_squares

    if len(rows) < 2:
        raise ResultsError(
            f"{len(rows)} rows of own algorithms, which say too little of a network; measure several "
            "sizes, with --algorithm ring,tree"
        )
    seconds = np.array([each.seconds for each in rows])

    @lru_cache(maxsize=1)
    def walk(free: tuple[str, ...], *values: float) -> tuple[Floats, Floats]:
        """Return the relative errors of the prices, and the errors' derivatives by the free parameters."""
        tried = _with(network, dict(zip(free, values, strict=True)))
        priced = [linear_price(tried, each.call, each.row.algorithm, each.tuning) for each in rows]
        prices = np.array([price for price, _ in priced])
        multiples = np.array([(*each[:-1], 1, each[-1]) for _, each in priced])  # of NAMES
        columns = multiples[:, [NAMES.index(name) for name in free]]
        return prices / seconds - 1, columns / seconds[:, None]

    def solve(free: tuple[str, ...], begin: list[float]) -> Any:
        def errors(values: Floats) -> Floats:
            return walk(free, *values)[0]

        def derivatives(values: Floats) -> Floats:
            return walk(free, *values)[1]

        return least_squares(errors, begin, derivatives, bounds=(0, math.inf), x_scale="jac")

    begin = parameters(network)
    blank = _indistinct(walk(tuple(begin), *begin.values())[1], tuple(begin))
    while True:
        free = tuple(name for name in begin if name not in blank)
        found = solve(free, [begin[name] for name in free])
        residuals, columns = walk(free, *found.x)
        values = np.where((columns * found.x).max(axis=0) > NOTHING, found.x, 0)
        errors = _errors(columns, residuals) / np.where(values, values, math.nan)
        fitted = dict(zip(free, values.tolist(), strict=True))
        uncertain = dict(zip(free, errors.tolist(), strict=True))
        work = [name for name in free if name in _OF_RANKS]
        weak = [name for name in work if not fitted[name] or uncertain[name] > 1]
        left = _indistinct(columns, free)
        if not left and weak:
            left = {weak[-1]: "its error is larger than itself"}
        elif not left and work and not all(fitted.values()):
            # If the work on a rank takes all time of the messages, the fit cannot distinguish the two.
            left = {work[-1]: "messages would take no time"}
        if not left:
            return Fit(_with(network, fitted), uncertain, blank, residuals)
        blank |= left
        begin |= fitted


def parameters(network: Network) -> dict[str, float]:
    """Return the parameters of a network by name, in seconds for each call, message or byte."""
    shown = {}
    for name in NAMES:
        value: Any = network
        for part in name.split():
            value = value and getattr(value, part)
        if value is not None:
            shown[name] = float(value if name.endswith(_TIMES) else 1 / value)
    return shown


def _with(network: Network, seconds: Mapping[str, float]) -> Network:
    """Return the network with these parameters, in seconds as from `parameters`."""
    for name, value in seconds.items():
        part, _, of_level = name.partition(" ")
        new: Any = value if name.endswith(_TIMES) else 1 / value if value > 0 else math.inf
        if of_level:
            new = replace(getattr(network, part), **{of_level: new})
        network = replace(network, **{part: new})
    return network


def _indistinct(columns: Floats, names: Sequence[str]) -> dict[str, str]:
    """Return the parameters that cannot be distinguished from earlier ones, each with the reason."""
    why: dict[str, str] = {}
    basis = np.empty((len(columns), 0))
    for name, column in zip(names, columns.T, strict=True):
        if not column.any():
            why[name] = "no row depends on it"
            continue
        left = column / np.linalg.norm(column)
        left = left - basis @ (basis.T @ left)
        rest = float(np.linalg.norm(left))
        if rest > APART and basis.shape[1] < len(columns):
            basis = np.column_stack([basis, left / rest])
        else:
            why[name] = "indistinguishable from those above"
    return why


def _errors(columns: Floats, residuals: Floats) -> Floats:
    """Return the standard errors of the fitted parameters, in seconds."""
    spare = len(columns) - columns.shape[1]
    lengths = np.linalg.norm(columns, axis=0)
    # At the solution, there may be parameters on which no row depends.
    scale = np.where(lengths, lengths, math.inf)
    inverse = np.linalg.pinv((columns / scale).T @ (columns / scale))
    variance = float(residuals @ residuals) / spare if spare else math.nan
    return np.sqrt(np.diag(inverse) * variance) / scale


def _report(run: Run, used: list[Measurement], others: Counter[str], fitted: Fit) -> Iterator[str]:
    """Yield the lines of the report."""
    network, shown = fitted.network, parameters(fitted.network)
    yield (
        f"Like {run.name} of {run.path}: {network.ranks} ranks, {network.ranks_per_node} a node; "
        f"{len(used)} of {len(run.rows)} rows used"
    )
    for why, number in others.most_common():
        yield f"  not used: {number} rows, {why}"
    yield f"{'parameter':<18}{'fitted':>14}   standard error"
    for name in NAMES:
        value, error = shown.get(name, math.nan), fitted.errors.get(name, math.nan)
        speed = 1e-9 / value if value else math.inf
        text = f"{value * 1e6:.4g} us" if name.endswith(_TIMES) else f"{speed:.4g} GB/s"
        told = f"{error:.1%}"
        if name not in shown:
            text, told = "", "unknown: no message of the run passed there"
        elif name in fitted.blank:
            told = f"not fitted: {fitted.blank[name]}"
        elif math.isnan(error):
            told = "unknown: too few rows" if value else "no time is left for it"
        yield f"{name:<18}{text:>14}   {told}"
    errors = np.abs(fitted.residuals)
    worst = used[int(errors.argmax())].row
    yield (
        f"Fitted times differ from the measured ones by {np.median(errors):.1%} in the median, at most by "
        f"{errors.max():.1%}: {worst.collective} by {worst.algorithm} of {worst.bytes} B"
    )
