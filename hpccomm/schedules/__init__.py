"""Algorithms as data, and the parts that read them: proof, cost and simulation.

`hpccomm.calls` executes the algorithms; ``hpccomm simulate``, ``tune`` and ``plot`` read them too.
"""
