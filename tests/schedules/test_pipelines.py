"""Pipelines keep their channels busy; that two trees share the work out, `test_algorithm_costs.py` holds."""

import numpy as np
import pytest

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.partition import Phase
from hpccomm.schedules.algorithms.pipeline import in_streams
from hpccomm.schedules.schedule import Tuning, whole, world


@pytest.mark.parametrize(
    ("count", "segment", "parts", "channels", "cut"),
    [
        (0, 4, 1, 1, None),
        (7, whole, 1, 1, None),
        (4, 4, 1, 1, None),
        (7, 4, 1, 1, 4),
        (8, 4, 1, 2, 4),
        (8, 4, 2, 1, None),
        (100, 4, 2, 3, 4),
    ],
)
def test_channels_that_would_have_no_whole_segment_are_left_out(
    count: int, segment: int, parts: int, channels: int, cut: int | None
) -> None:
    build = in_streams(Phase(lambda piece: iter(())), parts)
    call = Signature("broadcast", np.dtype(np.float32), (count,), root=0)
    schedule = build(world(2), call, Tuning(segment, 3))
    assert len(schedule.channels) == channels
    assert schedule.segment == cut
