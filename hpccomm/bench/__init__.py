"""Measurements: sweeps, tuning tables, fitted networks, simulated runs and imported logs.

The verbs of the command line call these packages. What they measure goes to `hpccomm.results`.
"""
