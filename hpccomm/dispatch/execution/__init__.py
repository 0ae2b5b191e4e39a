"""Runs one rank's schedule over a transport, or on memory that ranks share.

- `program` compiles it and `runner` runs it, for `hpccomm.dispatch.algorithms`.
- `variants` chooses among several forms, `exchanges` lets the ranks of a node meet, and `reached`
  binds steps to peers' memory.
- `enqueued` puts a program on a stream, for device arrays; `alternating` lets host and device take
  turns. Both need CUDA, and are imported by themselves.
"""
