"""Logs of other benchmarks, as runs of a results file: for ``hpccomm import``.

- `imported` separates a log's lines, checks printed rows, and holds what a log gives.
- `nccl_text`, `nccl_json` and `osu` each read a form of logs.
"""
