"""What is a communicator ends by finalize(), everything else by close(); each leads from the other's word to its own."""

from typing import Any

import numpy as np
import pytest

import hpccomm
from hpccomm.gradients import GradientSync

KINDS = {
    # How each is made, the word by which it ends, and those that lead to it.
    "Communicator": (lambda comm: comm.dup(), "finalize", ("close", "end")),
    "Grid": (lambda comm: comm.grid((1,)), "finalize", ("close", "end")),
    "Mesh": (lambda comm: comm.mesh((1,), ("data",)), "finalize", ("close", "end")),
    "Window": (lambda comm: comm.window(np.zeros(1)), "close", ("finalize", "end", "remove")),
    "Counter": (lambda comm: comm.counter(), "close", ("finalize", "end", "remove")),
    "Mutex": (lambda comm: comm.mutex(), "close", ("finalize", "end", "remove")),
    "Handle": (lambda comm: comm.register_pre_hook(print), "close", ("finalize", "end", "remove")),
    "ProgramRecorder": (lambda comm: comm.record(), "close", ("finalize", "end", "remove")),
    # It removes a parameter by that word.
    "GradientSync": (
        lambda comm: GradientSync(comm, {"w": np.zeros(1)}),
        "close",
        ("finalize", "end"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_ends_by_its_word_and_others_lead_to_it(kind: str) -> None:
    make, word, others = KINDS[kind]
    with hpccomm.new_comm("loopback") as comm:
        made: Any = make(comm)
        assert type(made).__name__ == kind
        for other in others:
            with pytest.raises(AttributeError, match=rf"ends by {word}\(\)"):
                getattr(made, other)
        for _ in range(2):
            getattr(made, word)()
