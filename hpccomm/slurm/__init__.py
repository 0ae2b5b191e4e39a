"""Batch scripts for Slurm: what is asked for, as data, and the text of the script."""
