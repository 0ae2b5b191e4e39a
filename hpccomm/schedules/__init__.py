"""Algorithms as data, and what reads them: proof, cost, simulation, pictures."""
