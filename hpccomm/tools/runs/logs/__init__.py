"""Logs of other benchmarks, as runs of a results file: for ``hpccomm import``.

- `nccl_text`, `nccl_json` and `osu` each read a form of logs, and return its tables as the log states them.
- `imported` separates a log's lines for them, and checks what a table states.
"""
