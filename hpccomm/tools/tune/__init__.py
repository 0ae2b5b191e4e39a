"""``hpccomm tune``: measures the table from which ``algorithm="auto"`` chooses.

- `tune` is the verb, from the first measurement to the last check.
- `measuring` lists the measured calls, times the algorithms, makes rows of the times, and times `auto` with the result.
"""
