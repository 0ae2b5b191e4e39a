"""``hpccomm simulate``: runs in virtual time on a described cluster.

- `simulate` is the verb: it lists calls, times and reports them, and compares algorithms.
- `like` fits the network to the rows of a stored run.
"""
