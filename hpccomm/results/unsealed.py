"""A results file read through HDF5: one without checksums, or one that another program has changed.

HDF5 may crash or loop on a damaged file, so this runs in a process of its own (`hpccomm.files.apart`).
"""

from pathlib import Path
from typing import Any

from hpccomm.errors import ResultsError
from hpccomm.results import contents, layout, storage
from hpccomm.results.schema import UNSEALED

PLACE = f"{__name__}:read"
"""Where `read` is, for `hpccomm.files.apart.call`."""


def read(name: str) -> dict[str, Any] | ResultsError:
    """Return all runs of a file, with their measurements if it has no checksums.

    Returns
    -------
    dict or ResultsError
        Why it cannot be read, which another process raises. Otherwise ``version``, and ``runs`` by name, each with what
        `hpccomm.results.contents.stated` says, and in a file without checksums ``rows`` (a list of
        `hpccomm.results.coding.Stored`), ``samples`` (an array), ``ended`` and ``status``.
    """
    path = Path(name)
    try:
        # Whoever writes to it has it locked; what it has written is whole.
        with storage.opened(path, locking=False) as file, storage.intact(path):
            version = int(file.attrs["schema_version"])
            runs = {
                name: _run(run, measured=version == UNSEALED)
                for name, run in storage.runs(file).items()
            }
    except ResultsError as error:
        return error
    return {"version": version, "runs": runs}


def _run(run: Any, *, measured: bool) -> dict[str, Any]:
    found = contents.stated(run)
    state = layout.dataset(run, "state")[()]
    samples = layout.dataset(run, "samples")
    if layout.is_old(run) != measured:
        raise ValueError(f"{run.name} is of another schema version than the file")
    if measured:
        found["rows"] = layout.stored_rows(run)
        found["samples"] = samples[: layout.written(run).repetitions]
        found["ended"] = float(state["ended"])
        status = state["status"] if found["ended"] else b""
        found["status"] = bytes(status).rstrip(b"\0").decode()
    return found
