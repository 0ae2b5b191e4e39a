"""Show each call as a range in Nsight Systems.

``nsys profile -t nvtx,cuda mpiexec -n 4 python nvtx_ranges.py``
"""

import numpy as np
import nvtx

import hpccomm


def show_calls(comm: hpccomm.Communicator) -> None:
    """Make each later call a range, from its begin to its end, which another thread may see."""
    ranges = {}

    def begin(info):
        words = f"{info.operation} {info.nbytes} bytes, {info.communicator}"
        ranges[info.sequence] = nvtx.start_range(words, domain="hpccomm")

    def end(info):
        if info.sequence in ranges:  # it is not a call from before
            nvtx.end_range(ranges.pop(info.sequence))

    comm.register_pre_hook(begin)
    comm.register_post_hook(end)


if __name__ == "__main__":
    with hpccomm.new_comm() as comm:
        show_calls(comm)
        work = comm.all_reduce(np.ones(1 << 20), async_op=True)
        comm.all_gather(np.ones(1000))
        work.wait()
