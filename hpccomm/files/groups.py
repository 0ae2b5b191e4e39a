"""HDF5 groups of attributes and tables as JSON, the form in which a seal holds them."""

from typing import Any


def dumped(group: Any) -> dict[str, Any]:
    """Return the attributes and the tables of a group (h5py) as JSON."""
    return {
        "attributes": {name: _plain(value) for name, value in group.attrs.items()},
        "tables": {
            name: [{key: _plain(line[key]) for key in line.dtype.names} for line in table[()]]
            for name, table in group.items()
        },
    }


def of_runs(path: str) -> list[dict[str, Any]]:
    """Return the group ``policy`` of each run of a file that has one, oldest first. HDF5 may crash."""
    import h5py

    # A run that is being measured has the file locked; what it has written is whole.
    with h5py.File(path, "r", locking=False) as file:
        runs = file.get("runs", {})
        names = sorted(runs, key=lambda name: (len(name), name))
        return [dumped(runs[name]["policy"]) for name in names if "policy" in runs[name]]


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return value.rstrip(b"\0").decode() if isinstance(value, bytes) else value
