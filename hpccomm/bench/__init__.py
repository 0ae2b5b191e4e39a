"""Measuring: sweeps, tuning tables, fitted networks, simulated runs."""
