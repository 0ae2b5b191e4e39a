"""Halos of device arrays: over NCCL, and by the host."""

import cupy
import halos
import pytest
from nccl_ranks import run_ranks


def check(comm):
    with cupy.cuda.Device(comm.device):
        halos.check(comm, cupy.asarray, cupy.asnumpy)
        halos.check_layouts(comm, cupy.asarray, cupy.asnumpy)


@pytest.mark.processes
# Grids of two axes are tested on the host, messages among more ranks in test_on_device.py.
@pytest.mark.parametrize(("backend", "ranks"), [("nccl", 1), ("nccl", 2), ("loopback", 2)])
def test_ghost_cells_are_those_of_the_padded_whole(backend, ranks):
    run_ranks(ranks, check, backend=backend)
