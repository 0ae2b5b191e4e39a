"""Measurements on disk and on the screen: the HDF5 file, nccl-tests' table and JSON, CSV.

- `schema`, `training` and `recording` describe the columns. `run` and `recording` hold what was read.
- `writer` and `recording_file` write, over `store`, `storage`, `layout`, `lines` and `blocks`.
- `reader`, `parts`, `archive` and `verify` read.
- `table`, `nccl_json`, `csv_text`, `describe`, `pairs_text`, `rates` and `recording_text` print.
- `expectations`, `judge`, `bounds` and `links` compare rows with expected bandwidths.
- `matching` and `lateness` say which calls of a recording belong together, and who waited for whom.

`hpccomm.bench` and `hpccomm.gradients` write through this package. `hpccomm.cli`, `hpccomm.charts`
and `hpccomm.comparison` read.
"""
