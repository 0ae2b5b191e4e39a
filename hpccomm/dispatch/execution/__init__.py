"""Runs one rank's schedule over a transport.

`program` makes it ready and `runner` runs it; `variants` chooses among several, `reached` carries out
steps on peers' memory. `enqueued` puts a program on a stream, for device arrays; it is imported by
itself, since it needs CUDA.
"""
