"""Logs of other benchmarks, as runs of a results file.

- `imported`: what a log gives. `lines`: what launchers put before each line.
- `nccl_text`, `nccl_json`: nccl-tests' table and JSON, which hpccomm prints too. `osu`: the OSU micro-benchmarks.
- `reading`: which of them a log is.
"""
