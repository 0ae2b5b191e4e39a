"""Algorithms as data, and their readers: proof, cost, simulation, pictures.

`hpccomm.dispatch` executes them; ``hpccomm simulate``, ``plot`` and ``fit`` read them too.
"""
