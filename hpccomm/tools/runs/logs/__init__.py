"""``hpccomm import``: logs of other benchmarks, as runs of a results file.

- `lines` removes the launcher's prefixes and separates the streams.
- `layout` reads the columns of nccl-tests' table and its rows. `nccl_text` reads the tables of a
  log.
- `nccl_json` and `records` read JSON and CSV. `osu` reads the OSU micro-benchmarks.
- `printed` checks a table's rows against its collective and ranks. `causes` finds why a program
  ended.
- `imported` holds what a log gives.
- `reading` decodes a file's bytes, and does all of this in order, for `hpccomm.tools.runs.importing`.
"""
