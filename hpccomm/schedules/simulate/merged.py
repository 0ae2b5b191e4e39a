"""The programs of single ranks, as one schedule of them all."""

from collections.abc import Sequence

from hpccomm.schedules.algorithms.channels import side_by_side
from hpccomm.schedules.schedule import Channel, Schedule


def merged(programs: Sequence[Schedule]) -> Schedule:
    """Return the schedule of all ranks, of one for each.

    Where calls differ from rank to rank, as in an uneven all-to-all, programs can be had only one
    by one. None may have a barrier.
    """
    most = max((len(each.channels) for each in programs), default=0)

    def channel(number: int) -> Channel:
        parts = [each.channels[number] for each in programs if number < len(each.channels)]
        return lambda: side_by_side(*(part() for part in parts))

    return Schedule(
        tuple(channel(number) for number in range(most)),
        max((each.scratch for each in programs), default=0),
        next((each.segment for each in programs if each.segment is not None), None),
    )
