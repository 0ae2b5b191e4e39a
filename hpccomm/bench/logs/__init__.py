"""Logs of other benchmarks, as runs of a results file.

- `texts`: a file's bytes as text. `lines`: its lines, without what launchers put before each, and apart by who printed them.
- `layout`: the columns of nccl-tests' table, and rows that have them. `nccl_text`: the tables of a log.
- `documents`, `nccl_json`, `records`: JSON and CSV. `osu`: the OSU micro-benchmarks.
- `figures`, `identifying`: a table against its own figures. `causes`: why a program ended.
- `imported`: what a log gives. `reading`: all of this, one after the other.
"""
