"""Stored runs: shown, compared, drawn, reported, exported, and imported.

- `show`, `compare`, `report`, `plot`, `export` and `import_` are the verbs.
- `curves` has the data of charts, and `charts` draws them. `page` is the page of a report.
- `trace` follows the elements of a call through a schedule, and `schedule` draws that.
- `logs` reads the logs of other benchmarks.
"""
