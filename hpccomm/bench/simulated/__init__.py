"""``hpccomm simulate``: runs in virtual time on a described cluster.

- `like` fits the network to the rows of a stored run.
- `tables` holds what to simulate, and lists its calls.
- `runs` times and reports them, and puts algorithms side by side.
"""
