"""Runs one rank's schedule over a transport.

`program` makes it ready and `runner` runs it; `variants` chooses among several, `exchanges` lets the ranks
of a node meet, `reached` binds steps to peers' memory. `enqueued` puts a program on a stream, for device
arrays; it is imported by itself, since it needs CUDA.
"""
