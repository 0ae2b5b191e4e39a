"""The figures of a results row that follow from its time. Every benchmark makes its rows by it."""


def figures(
    nbytes: float, seconds: float, factor: float, printed: float | None = None
) -> tuple[float, float, float]:
    """Return time, algorithm bandwidth and bus bandwidth of a measurement, as fields of `Row`.

    Parameters
    ----------
    nbytes : float
        Bytes that count in algorithm bandwidth.
    seconds : float
        Time of one operation, from which bandwidths are computed.
    factor : float
        Bus bandwidth over algorithm bandwidth.
    printed : float, optional
        The shown time, if it differs.
    """
    # What takes no time has no bandwidth: an infinite one would be all of the average.
    algbw = nbytes / 1e9 / seconds if seconds > 0 else 0.0
    return (seconds if printed is None else printed) * 1e6, algbw, algbw * factor
