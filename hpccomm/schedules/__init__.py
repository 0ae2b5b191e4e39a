"""Algorithms as data, and their readers: proof, cost, simulation, pictures.

`hpccomm.dispatch` executes them; ``hpccomm simulate`` and ``plot`` read them too.
"""
