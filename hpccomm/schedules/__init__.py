"""Algorithms as data, and their readers: proof, cost, simulation, pictures.

`hpccomm.calls` executes them; ``hpccomm simulate`` and ``plot`` read them too.
"""
