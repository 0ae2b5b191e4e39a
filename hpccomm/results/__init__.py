"""Measurements on disk and on the screen: the HDF5 file, nccl-tests' table and JSON, CSV.

- `schema` and `recording` describe the columns; `facts` are about a run.
- `writer` and `recording_file` write, and `reader` reads. All use `files`, `lines` (bytes with checksums), `blocks` (of
  recorded calls), `layout` (in HDF5) and `store` (files and sections that are being written).
- `archive` finds runs in many files. `comparison` compares two sets of them.
- `table`, `exports`, `pairs` and `recording_text` print. `timings` has the statistics.
- `expectations` compares rows with what links allow, and with expected rates.

The public names are `read`, `read_recordings`, `examine`, and the classes of their results. They are loaded on first use,
because they load h5py.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpccomm.results.reader import Examined as Examined
    from hpccomm.results.reader import Run as Run
    from hpccomm.results.reader import examine as examine
    from hpccomm.results.reader import read as read
    from hpccomm.results.recording import Recording as Recording
    from hpccomm.results.recording_file import read_recordings as read_recordings

_HOME = {
    "read": "reader",
    "read_recordings": "recording_file",
    "examine": "reader",
    "Run": "reader",
    "Recording": "recording",
    "Examined": "reader",
}

__all__ = [*_HOME]  # noqa: PLE0604  (the table above is the one list of names)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'hpccomm.results' has no attribute {name!r}")
    return getattr(import_module(f"hpccomm.results.{_HOME[name]}"), name)
