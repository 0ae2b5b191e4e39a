"""Tables in a results file: the entry ``policy`` in the facts of a run of ``hpccomm tune``.

``hpccomm tune`` writes it, as JSON (see ``hpccomm.calls.policy.table``); the first communicator reads it from HPCCOMM_TUNING_FILE.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpccomm.calls.policy.choosing import NATIVE
from hpccomm.calls.policy.table import Table
from hpccomm.errors import ConfigurationError, ResultsError, UsageError
from hpccomm.results import records
from hpccomm.schedules.algorithms import KNOWN

ENTRY = "policy"
"""Name of the entry in the facts of a run."""


def read(path: str) -> tuple[Table, ...]:
    """Return the tables of a results file, oldest first. For one rank; blocks for the file alone.

    Raises
    ------
    ConfigurationError
        If it cannot be read, is not a results file, or has no readable table.
    """
    try:
        with records.opened(Path(path)) as (hdf5, _):
            runs = hdf5[records.RUNS]
            facts = [records.read_record(runs[name]) for name in records.names(runs, "run")]
        tables = tuple(
            _checked(each["entries"][ENTRY]) for each in facts if ENTRY in each["entries"]
        )
    except (ImportError, OSError, ResultsError) as error:
        raise _refused(path, f"cannot be used: {error}") from None
    except records.HDF5_ERRORS as error:
        raise _refused(path, f"is damaged: {records.why(error)}") from error
    if not tables:
        raise _refused(path, "holds no table")
    return tables


def _refused(path: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"tuning file {path!r} (options.tuning_file or HPCCOMM_TUNING_FILE) {why}; "
        "give a file that `hpccomm tune` wrote, or leave it out"
    )


def _checked(entry: Mapping[str, Any]) -> Table:
    """Return the table of an entry, which names what this hpccomm has."""
    table = Table.of(entry)
    for (collective, _), rows in table.rows.items():
        if collective not in KNOWN:
            raise UsageError(f"{collective!r} is not a collective")
        for _, pick in rows:
            if pick.algorithm != NATIVE and pick.algorithm not in KNOWN[collective]:
                raise UsageError(
                    f"{pick.algorithm!r} is not an installed algorithm of {collective}"
                )
            if min(pick.segment, pick.channels) < 0:
                raise UsageError(f"{collective} has a row of less than 0 segments or channels")
    return table
