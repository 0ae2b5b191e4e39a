"""What a row of results derives from its time."""

import time


def rates(nbytes: float, seconds: float, factor: float) -> dict[str, float]:
    """Return the bandwidths of a measurement as fields of `Row`, finished now.

    Parameters
    ----------
    nbytes : float
        Bytes that count in algorithm bandwidth.
    seconds : float
        Time of one operation.
    factor : float
        Bus bandwidth over algorithm bandwidth.
    """
    # What takes no time has no bandwidth: an infinite one would be all of the average.
    algbw = nbytes / 1e9 / seconds if seconds > 0 else 0.0
    return {"algbw": algbw, "busbw": algbw * factor, "finished": time.time()}
