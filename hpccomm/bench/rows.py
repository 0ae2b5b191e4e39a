"""A row of results, made from what was timed."""

import time

from hpccomm.results.schema import UNCHECKED, Row


def row(
    block: tuple[str, str, str],
    dtype: str,
    op: str,
    *,
    root: int,
    nbytes: int,
    count: int,
    in_place: bool,
    seconds: float,
    factor: float,
    iterations: int,
    wrong: int = UNCHECKED,
    printed: float | None = None,
) -> Row:
    """Return the row of one measurement, with its bandwidths, finished now.

    Parameters
    ----------
    block : tuple of str
        Collective, backend and algorithm.
    dtype, op : str
        As they are printed.
    root : int
        -1 where there is none.
    nbytes, count : int
        Size, and elements passed to the call.
    in_place : bool
        Whether input and output were one array.
    seconds : float
        Time of one operation.
    factor : float
        Bus bandwidth over algorithm bandwidth.
    iterations : int
        Repetitions of which `seconds` is the average.
    wrong : int, optional
        Elements that differ from the expected ones.
    printed : float, optional
        Seconds to print in place of `seconds`.
    """
    # What takes no time has no bandwidth: an infinite one would be all of the average.
    algbw = nbytes / 1e9 / seconds if seconds > 0 else 0.0
    collective, backend, algorithm = block
    return Row(
        collective=collective,
        backend=backend,
        algorithm=algorithm,
        dtype=dtype,
        op=op,
        root=root,
        bytes=nbytes,
        count=count,
        in_place=in_place,
        time=(seconds if printed is None else printed) * 1e6,
        algbw=algbw,
        busbw=algbw * factor,
        wrong=wrong,
        iterations=iterations,
        finished=time.time(),
    )
