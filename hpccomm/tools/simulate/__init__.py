"""``hpccomm simulate``: runs in virtual time on a described cluster.

- `like` fits the network to the rows of a stored run.
- `runs` holds what to simulate, lists its calls, times and reports them, and puts algorithms side by side.
"""
