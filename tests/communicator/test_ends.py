"""What is a communicator ends by finalize(), everything else by close(); each leads from the other's word to its own."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpccomm
from hpccomm.gradients import GradientSync

COMMUNICATORS = {
    "Communicator": lambda comm: comm.dup(),
    "Grid": lambda comm: comm.grid((1,)),
    "Mesh": lambda comm: comm.mesh((1,), ("data",)),
}
OTHERS = {
    "Window": lambda comm: comm.window(np.zeros(1)),
    "Counter": lambda comm: comm.counter(),
    "Mutex": lambda comm: comm.mutex(),
    "Handle": lambda comm: comm.register_pre_hook(print),
    "ProgramRecorder": lambda comm: comm.record(),
    "GradientSync": lambda comm: GradientSync(comm, {"w": np.zeros(1)}),
}


@pytest.fixture
def comm() -> Iterator[hpccomm.Communicator]:
    with hpccomm.new_comm("loopback") as made:
        yield made


def hint(owner: Any, name: str) -> str:
    with pytest.raises(AttributeError) as refused:
        getattr(owner, name)
    return str(refused.value)


@pytest.mark.parametrize("kind", COMMUNICATORS)
def test_a_communicator_ends_by_finalize(comm: hpccomm.Communicator, kind: str) -> None:
    made = COMMUNICATORS[kind](comm)
    assert type(made).__name__ == kind
    for name in ("close", "end"):
        assert "ends by finalize()" in hint(made, name)
    made.finalize()
    made.finalize()


@pytest.mark.parametrize("kind", OTHERS)
def test_all_else_ends_by_close(comm: hpccomm.Communicator, kind: str) -> None:
    made = OTHERS[kind](comm)
    assert type(made).__name__ == kind
    for name in ("finalize", "end"):
        assert "ends by close()" in hint(made, name)
    if kind != "GradientSync":  # which removes a parameter by it
        assert "ends by close()" in hint(made, "remove")
    made.close()
    made.close()
