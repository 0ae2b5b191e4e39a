"""A fit from a results file to the report and the description."""

from pathlib import Path

from hpccomm.bench.fit import report, stored_runs
from hpccomm.bench.fit.parameters import fit
from hpccomm.results import reader
from hpccomm.schedules.cost.network_files import dump


def fitted(
    file: Path, run: str | None, cluster: str | None, *, segment: int | None, channels: int | None
) -> tuple[str, str]:
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
    """
    chosen = reader.choose(reader.read(file), run)
    network = stored_runs.described(chosen, cluster)
    rows = stored_runs.usable(chosen, network, segment=segment, channels=channels)
    found = fit(network, rows.measurements)
    return report.text(chosen, rows, found), dump(found.network)
