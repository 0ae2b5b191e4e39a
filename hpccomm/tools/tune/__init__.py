"""``hpccomm tune``: the measurement of the table from which ``algorithm="auto"`` chooses.

- `tune` is the verb, from the first measurement to the last check.
- `measuring` lists the measured calls, times the algorithms, makes the table's rows from the times, and times `auto`.
"""
