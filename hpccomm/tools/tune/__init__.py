"""``hpccomm tune``: measures the table from which ``algorithm="auto"`` chooses.

- `table` runs all of it, for `hpccomm.tools.tune.command`. `calls` lists the measured calls.
- `measuring` times the algorithms, makes rows of the times, and times `auto` with the result.
"""
