"""What `make.sh` records: calls in two communicators, messages, and the steps of a training."""

import sys

import numpy as np

import hpccomm
from hpccomm.gradients import GradientSync

with hpccomm.new_comm() as comm:
    reversed_comm = comm.split(0, -comm.rank, name="reversed")
    x = np.ones(256, np.float32)
    for _ in range(3):
        comm.all_reduce(x)
        reversed_comm.broadcast(x, root=1)
        comm.all_gather(x[:4], async_op=True).wait()
    comm.send_recv(x, 1 - comm.rank, np.empty_like(x), 1 - comm.rank)
    reversed_comm.finalize()
    model = {"weight": np.zeros(8), "bias": np.zeros(1, np.float32)}
    with GradientSync(comm, model, log=sys.argv[1]) as sync:
        for _ in range(2):
            sync.sync({name: np.ones_like(value) for name, value in model.items()})
