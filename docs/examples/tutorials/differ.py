"""Reduce arrays of different sizes: the ranks disagree."""

import numpy as np

import hpccomm

with hpccomm.new_comm() as comm:
    x = np.ones(100 if comm.rank == 0 else 200)
    comm.all_reduce(x)
