"""``hpccomm fit``: the description of a cluster, from the times of a stored run.

- `stored_runs` reads the rows, `parameters` fits them, `report` prints the description.
"""
