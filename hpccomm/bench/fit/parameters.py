"""Fits the parameters of a network to measured times, by linear least squares.

A price is linear in the parameters along its critical path: each message costs a latency, and each byte
costs the time of a port. Which path is critical depends on the parameters. The fit therefore alternates
until nothing changes: it walks the critical paths with the parameters of the last round
(`hpccomm.schedules.cost.rounds`), and fits the parameters to these paths. The result depends on the
starting point. The fit first runs from several starting points, with the paths that any of them has seen;
then it continues from the best result with that result's own paths. The error of a row is relative,
because times differ by many powers of ten. No parameter is negative: C. L. Lawson, R. J. Hanson, "Solving
least squares problems", 1974, chapter 23.

The time of a port for each message (`gap`), and what ports share, are not fitted.

`hpccomm.bench.fit.report` calls it with the rows of `hpccomm.bench.fit.stored_runs`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.signature import Signature
from hpccomm.errors import ResultsError
from hpccomm.schedules.cost.model import linear_price
from hpccomm.schedules.cost.network import Level, Network
from hpccomm.schedules.cost.rounds import PARAMETERS
from hpccomm.schedules.schedule import Tuning

Floats = NDArray[np.float64]

Paths = Callable[[Network], Floats]
"""Returns the critical path of each measurement on a network, as float64 (measurements, 1 + parameters):
the multiple of each of `PARAMETERS`, and last the seconds that are not fitted."""

ROUNDS = 30
"""After this many rounds, the fit takes the parameters of the best round."""

APART = 0.03
"""A parameter can be fitted only if the part of its column that the other columns do not explain is longer
than this fraction of the column."""

SPEEDS = ("inner bandwidth", "across bandwidth", "reduce", "copy")
"""Parameters that are bytes a second; the others are seconds."""

OVERHEAD = "overhead"
"""The time of every call, independent of its path."""

NAMES = (*PARAMETERS[:-1], OVERHEAD, PARAMETERS[-1])
"""The parameters, in order of priority: if two cannot be distinguished, only the first is fitted."""

_MOST_STEPS = 1000
"""Of one least-squares solution, which takes some three for each parameter."""

_MESSAGES = tuple(name for name in NAMES if name.endswith(("latency", "bandwidth")))


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured time.

    Attributes
    ----------
    call : Signature
        Of any rank.
    algorithm : str
        The name of an own algorithm.
    tuning : Tuning
        Segments, channels and nodes of the call.
    seconds : float
        How long it took.
    """

    call: Signature
    algorithm: str
    tuning: Tuning
    seconds: float


@dataclass(frozen=True, slots=True)
class FittedParameter:
    """The result for one parameter.

    Attributes
    ----------
    name : str
        One of `NAMES`.
    value : float
        Seconds, or bytes a second.
    error : float
        Its relative standard error; NaN where it was not fitted, or is zero or infinite.
    blank : str
        Why it was not fitted, or empty. Then `value` is the described one.
    """

    name: str
    value: float
    error: float
    blank: str


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A network that fits measured times.

    Attributes
    ----------
    network : Network
        With the fitted parameters.
    parameters : tuple of FittedParameter
        One for each that the network can have.
    residuals : ndarray of float64, shape (measurements,)
        Price over measured time, minus 1.
    """

    network: Network
    parameters: tuple[FittedParameter, ...]
    residuals: Floats


def fit(network: Network, measurements: Sequence[Measurement]) -> Fit:
    """Fit the parameters of a network. Local.

    Parameters
    ----------
    network : Network
        The ranks, and the values of parameters that the measurements do not determine.
    measurements : sequence of Measurement
        Each of them on all ranks of the network.

    Raises
    ------
    ResultsError
        If there are too few measurements.
    """
    if len(measurements) < 2:
        raise ResultsError(
            f"{len(measurements)} rows to fit parameters to; at least 2 are needed, of own "
            "algorithms: measure several sizes, with --algorithm"
        )
    seconds = np.array([each.seconds for each in measurements])
    names = _names(network)
    starts = list(_starts(network))
    seen = np.array([_walked(start, measurements) for start in starts])
    rough = (_descend((start, None), network, seconds, names, _longest(seen)) for start in starts)
    _, near, by = min(rough, key=lambda each: each[0])

    def exact(tried: Network) -> Floats:
        return _walked(tried, measurements)

    _, best, determined = _descend((near, by), network, seconds, names, exact)
    columns, weighted = _columns(exact(best), seconds, names)
    residuals = columns @ _values(best, names) - weighted
    errors = _errors(columns, residuals, names, determined)
    distinct = _distinguished(columns, names)
    parameters = tuple(
        _parameter(
            name, best, errors, _blank(name, determined, distinct, seen=bool(columns[:, at].any()))
        )
        for at, name in enumerate(names)
    )
    return Fit(best, parameters, residuals)


def _starts(network: Network) -> Iterator[Network]:
    """Yield starting points. One of them is close enough, as critical paths depend only on ratios."""
    yield network
    for bandwidth in (1e9, 1e10, 1e11, 1e12):
        inner, across = network.inner, network.across
        yield replace(
            network,
            reduce=bandwidth,
            copy=bandwidth,
            inner=inner and replace(inner, latency=1e-6, bandwidth=bandwidth),
            across=across and replace(across, latency=1e-5, bandwidth=bandwidth / 10),
        )


def _walked(network: Network, measurements: Sequence[Measurement]) -> Floats:
    """Return the critical paths of measurements on a network, as `Paths` do."""
    rates = _values(network, list(PARAMETERS))
    rows = []
    for each in measurements:
        seconds, counts = linear_price(network, each.call, each.algorithm, each.tuning)
        rows.append([*counts, seconds - network.overhead - counts @ rates])
    return np.array(rows)


def _longest(seen: Floats) -> Paths:
    """Return a function that chooses the longest path of each measurement.

    The paths in `seen` have the shape (starts, measurements, 1 + parameters).
    """

    def longest(network: Network) -> Floats:
        each = seen @ np.append(_values(network, list(PARAMETERS)), 1.0)
        paths: Floats = seen[each.argmax(axis=0), np.arange(seen.shape[1])]
        return paths

    return longest


def _descend(
    start: tuple[Network, list[str] | None],
    network: Network,
    seconds: Floats,
    names: list[str],
    paths: Paths,
) -> tuple[float, Network, list[str]]:
    """Return the least error that the fit reaches from `start`, its network and its fitted parameters.

    `start` is a network and the names of its fitted parameters, or None if it was not fitted.
    """
    tried, determined = start
    nearest, best = (tried, determined or []), math.inf
    for _ in range(ROUNDS):
        columns, weighted = _columns(paths(tried), seconds, names)
        if determined is not None:
            error = float(np.linalg.norm(columns @ _values(tried, names) - weighted))
            if error >= best * (1 - 1e-9):
                break
            best, nearest = error, (tried, determined)
        fitted, determined = _fitted(columns, weighted, names, network)
        tried = _with(network, dict(zip(names, fitted.tolist(), strict=True)))
    return best, *nearest


def _names(network: Network) -> list[str]:
    """Return the parameters that a network has, in order of priority."""
    levels = {"inner": network.inner, "across": network.across}
    return [name for name in NAMES if levels.get(name.split()[0], network) is not None]


def _columns(paths: Floats, seconds: Floats, names: list[str]) -> tuple[Floats, Floats]:
    """Return the multiples of the parameters and the times to reach, both divided by the measured times."""
    columns = np.ones((len(paths), len(names)))
    for at, name in enumerate(names):
        if name != OVERHEAD:
            columns[:, at] = paths[:, PARAMETERS.index(name)]
    return columns / seconds[:, None], 1.0 - paths[:, -1] / seconds


def _distinguished(columns: Floats, names: list[str]) -> list[str]:
    """Return the parameters that can be distinguished from those before them."""
    determined: list[str] = []
    basis = np.empty((len(columns), 0))
    for at, name in enumerate(names):
        column = columns[:, at]
        length = float(np.linalg.norm(column))
        if length == 0:
            continue
        left = column / length
        left = left - basis @ (basis.T @ left)
        rest = float(np.linalg.norm(left))
        if rest > APART and len(determined) < len(columns):
            determined.append(name)
            basis = np.column_stack([basis, left / rest])
    return determined


def _fitted(
    columns: Floats, weighted: Floats, names: list[str], network: Network
) -> tuple[Floats, list[str]]:
    """Return the parameters of the least-squares solution, and the names of the fitted ones.

    Work on a rank must not take the time that a message needs, so that the message costs nothing: such a
    fit only shows that the two cannot be distinguished. A parameter of a rank is fitted only if it does
    not increase the number of message parameters that become zero.
    """

    def lost(determined: list[str]) -> int:
        """Return how many parameters of messages are zero."""
        fitted = _solve(columns, weighted, names, determined, network)
        return sum(not fitted[names.index(name)] for name in determined if name in _MESSAGES)

    distinct = _distinguished(columns, names)
    determined = [name for name in distinct if name in _MESSAGES]
    least = lost(determined)
    if lost(distinct) <= least:
        determined = distinct
    else:
        for name in distinct[len(determined) :]:
            if lost([*determined, name]) <= least:
                determined.append(name)
    return _solve(columns, weighted, names, determined, network), determined


def _solve(
    columns: Floats, weighted: Floats, names: list[str], determined: list[str], network: Network
) -> Floats:
    """Return the least-squares solution; parameters that are not fitted keep their values."""
    from scipy.optimize import nnls

    fitted = _values(network, names)
    free = np.array([name in determined for name in names])
    wanted = weighted - columns[:, ~free] @ fitted[~free]
    scale = np.linalg.norm(columns[:, free], axis=0)
    if free.any():
        fitted[free] = nnls(columns[:, free] / scale, wanted, maxiter=_MOST_STEPS)[0] / scale
    return fitted


def _values(network: Network, names: list[str]) -> Floats:
    """Return the parameters in seconds: of a call, of a message, of a byte."""
    values = {OVERHEAD: network.overhead, "reduce": 1 / network.reduce, "copy": 1 / network.copy}
    for kind, level in (("inner", network.inner), ("across", network.across)):
        latency, byte = (0.0, 0.0) if level is None else (level.latency, 1 / level.bandwidth)
        values |= {f"{kind} latency": latency, f"{kind} bandwidth": byte}
    return np.array([values[name] for name in names])


def _with(network: Network, values: dict[str, float]) -> Network:
    """Return the network with these parameters, in seconds."""

    def speed(name: str) -> float:
        return 1 / values[name] if values[name] > 0 else math.inf

    def level(kind: str, given: Level | None) -> Level | None:
        if given is None:
            return None
        return replace(
            given, latency=values[f"{kind} latency"], bandwidth=speed(f"{kind} bandwidth")
        )

    return replace(
        network,
        inner=level("inner", network.inner),
        across=level("across", network.across),
        reduce=speed("reduce"),
        copy=speed("copy"),
        overhead=values["overhead"],
    )


def _errors(
    columns: Floats, residuals: Floats, names: list[str], determined: list[str]
) -> dict[str, float]:
    """Return the standard error of each fitted parameter, in seconds.

    A parameter that was fitted to zero may no longer be on any critical path; it then has no error.
    """
    determined = [name for name in determined if columns[:, names.index(name)].any()]
    free = columns[:, [names.index(name) for name in determined]]
    spare = len(columns) - len(determined)
    if spare < 1:
        return {}
    scale = np.linalg.norm(free, axis=0)
    inverse = np.linalg.pinv((free / scale).T @ (free / scale))
    spread = np.sqrt(np.diag(inverse) * float(residuals @ residuals) / spare) / scale
    return dict(zip(determined, spread.tolist(), strict=True))


def _blank(name: str, determined: list[str], apart: list[str], *, seen: bool) -> str:
    """Say why a parameter was not fitted; empty if it was."""
    if name in determined:
        return ""
    if name in apart:
        return "with it, a message or its bytes would take no time"
    return "indistinguishable from those above" if seen else "no row depends on it"


def _parameter(
    name: str, network: Network, errors: dict[str, float], blank: str
) -> FittedParameter:
    value = float(_values(network, [name])[0])
    error = errors.get(name, math.nan) / value if value else math.nan
    shown = (1 / value if value else math.inf) if name in SPEEDS else value
    return FittedParameter(name, shown, error, blank)
