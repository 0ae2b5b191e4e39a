"""One clock for all ranks, by which the start and the end of an operation are compared.

`common` bounds the difference of two clocks, from messages that carry the time, and lets every rank
read the clock of rank 0, through a tree of such pairs.

`hpccomm.bench.perf.isolated` starts repetitions by it.
"""
