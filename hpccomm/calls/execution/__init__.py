"""Runs one rank's schedule over a transport, or on memory that ranks share.

- `program` compiles it, and binds its steps to peers' memory; `runner` runs it, for `hpccomm.calls.algorithms`.
- `variants` chooses among several forms, and `exchanges` lets the ranks of a node meet.
"""
