"""The tags of plans: few where an MPI library has few. The numbers are those of any allocator from 0 upwards."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from hpccomm.calls.core import PlanTags
from hpccomm.errors import UsageError


def test_plans_share_a_transport_until_its_tags_are_used_up() -> None:
    made: list[Any] = []

    def planned() -> Any:
        made.append(SimpleNamespace(largest_tag=2))
        return made[-1]

    backend: Any = SimpleNamespace(planned=planned)
    calls: Any = SimpleNamespace(beside_watchdog=lambda *_, **__: nullcontext())
    tags = PlanTags(backend, calls)
    for _ in range(3):
        with pytest.raises(UsageError, match=r"4 messages .* 3 tags"):
            tags.take(4)
    taken = [tags.take(count) for count in (2, 1, 1)]
    assert taken == [(made[0], 0), (made[0], 2), (made[1], 0)]
    assert len(made) == 2
