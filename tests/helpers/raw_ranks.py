"""Threads as ranks with the bare NCCL of CuPy between them."""

import cupy
from cupy.cuda import nccl
from nccl_ranks import in_threads, sound
from ranked import each_rank


def on_ranks(function, size):
    """Have ranks that are threads do ``function(rank, communicator, stream)``."""
    unique = nccl.get_unique_id()

    def main(rank):
        with cupy.cuda.Device(rank):
            communicator = nccl.NcclCommunicator(size, unique, rank)
            with cupy.cuda.Stream(non_blocking=True) as stream:
                function(rank, communicator, stream)
            communicator.destroy()

    sound(in_threads(size, main, 60.0))


def raw(size=3, *, breaks="", times=0):
    """Make a test of what each rank does, given its number, its communicator, a stream and fixtures.

    In it a rule of the stand-in is broken so often; `breaks` has words of what it says of that.
    """

    def run(test):
        on_ranks(test, size)
        if times:
            broken(breaks, times)

    return each_rank(run, given=3)


def broken(words, times=1):
    """Check that rules of the stand-in were broken so often, by what it says of it; and forget that."""
    from standin import control

    told, control.violations[:] = list(control.violations), []
    assert [words in each for each in told] == [True] * times, told


def status_of(function, *arguments):
    """Return the status with which NCCL refuses a call; 0 if it does not."""
    try:
        function(*arguments)
    except nccl.NcclError as error:
        return error.status
    return 0
