"""``hpccomm fit`` from a results file to its output: the report, and the cluster's description.

The report is printed as comments of TOML, so that the output is a valid description. The verb
`hpccomm.cli.fit` prints it.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpccomm.bench.fit import stored_runs
from hpccomm.bench.fit.parameters import SPEEDS, Fit, FittedParameter, fit
from hpccomm.bench.fit.stored_runs import Usable
from hpccomm.results import reader
from hpccomm.results.run import Run, choose
from hpccomm.schedules.cost.network_files import dump

UNSURE = 0.25
"""Relative standard error above which a parameter is called uncertain."""


def fitted(
    file: Path, run: str | None, cluster: str | None, *, segment: int | None, channels: int | None
) -> tuple[str, str, list[str]]:
    """Fit a description to a run. Local.

    Parameters
    ----------
    file : Path
        The results file.
    run : str or None
        The run, by name or number; None is the last.
    cluster, segment, channels
        As for `hpccomm.bench.fit.stored_runs.described` and `usable`.

    Returns
    -------
    str
        The report, whose lines are comments in TOML.
    str
        The description, as TOML.
    list of str
        What of the file is damaged, and was left out.
    """
    examined = reader.examine(file)
    chosen = choose(examined.runs, run)
    network = stored_runs.described(chosen, cluster)
    rows = stored_runs.usable(chosen, network, segment=segment, channels=channels)
    result = fit(network, rows.measurements)
    return text(chosen, rows, result), dump(result.network), [*examined.damage, *rows.damage]


def text(run: Run, usable: Usable, result: Fit) -> str:
    """Return the report.

    Parameters
    ----------
    run : Run
        The run.
    usable : Usable
        Its rows.
    result : Fit
        Fitted to them.
    """
    return "".join(f"# {line}".rstrip() + "\n" for line in _lines(run, usable, result))


def _lines(run: Run, usable: Usable, result: Fit) -> Iterator[str]:
    network = result.network
    yield (
        f"{run.name} of {run.path}: {network.ranks} ranks, {network.ranks_per_node} a node; "
        f"{len(usable.rows)} of {len(run.rows)} rows used"
    )
    for why, number in usable.others.most_common():
        yield f"  not used: {number} rows, {why}"
    yield ""
    yield f"{'parameter':<18}{'fitted':>14}   standard error"
    for parameter in result.parameters:
        yield f"{parameter.name:<18}{_value(parameter):>14}   {_certainty(parameter)}"
    if network.across is None:
        yield f"{'across':<18}{'':>14}   unknown: the run has one node"
    if network.inner is None:
        yield f"{'inner':<18}{'':>14}   unknown: the run has one rank a node"
    for parameter in result.parameters:
        if parameter.name.endswith("bandwidth") and math.isinf(parameter.value):
            yield (
                f"warning: bandwidth = inf is written for {parameter.name.split()[0]}: bytes take no "
                "time there; measure larger arrays"
            )
    yield ""
    yield f"{'table':<34}{'rows':>5}{'median error':>14}{'largest':>10}"
    tables = [f"{row.collective} {row.algorithm}" for row in usable.rows]
    for name in dict.fromkeys(tables):
        errors = result.residuals[[table == name for table in tables]]
        largest = errors[np.argmax(np.abs(errors))]
        median = float(np.median(np.abs(errors)))
        yield f"{name:<34}{len(errors):>5}{median:>13.1%} {largest:>+9.1%}"


def _value(parameter: FittedParameter) -> str:
    if parameter.name in SPEEDS:
        return f"{parameter.value / 1e9:.4g} GB/s"
    return f"{parameter.value * 1e6:.4g} us"


def _certainty(parameter: FittedParameter) -> str:
    if parameter.blank:
        reason = "costs nothing" if _costs_nothing(parameter) else "kept as it was described"
        return f"not fitted, {reason}: {parameter.blank}"
    if math.isnan(parameter.error):
        return "no time was left for it" if _costs_nothing(parameter) else "unknown: too few rows"
    doubt = "; uncertain" if parameter.error > UNSURE else ""
    return f"{parameter.error:.1%}{doubt}"


def _costs_nothing(parameter: FittedParameter) -> bool:
    return parameter.value in (0.0, math.inf)
