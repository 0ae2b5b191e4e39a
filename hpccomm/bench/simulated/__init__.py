"""``hpccomm simulate``: runs in virtual time on a described cluster.

- `like` fits the network to the rows of a stored run.
- `request` holds what to simulate, `tables` the calls for it.
- `runs` times and reports them.
- `comparison` puts algorithms side by side.
"""
