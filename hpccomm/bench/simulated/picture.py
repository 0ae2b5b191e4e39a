"""Algorithms side by side, drawn: time and bus bandwidth over size.

`hpccomm.cli.simulate` writes it.
"""

import math
from collections.abc import Mapping

from hpccomm.bench.simulated.comparison import Cost, Curves
from hpccomm.charts import curves, pictures
from hpccomm.drawing.vega import Chart


def draw(groups: Mapping[str, Curves]) -> Chart:
    """Return a chart with a row for each group of algorithms, by title.

    Raises
    ------
    ResultsError
        If all sizes or all times are 0.
    """
    return pictures.over_size(
        {
            title: [
                curves.Curve(name, tuple(map(_charted, points))) for name, points in group.items()
            ]
            for title, group in groups.items()
        }
    )


def _charted(point: Cost) -> curves.CurvePoint:
    time, nothing = point.seconds * 1e6, math.nan
    statistic = "time of the last rank, us"
    return curves.CurvePoint(
        point.nbytes, time, nothing, nothing, point.busbw, nothing, -1, statistic
    )
