"""What is a communicator ends by finalize(), everything else by close(); each leads from the other's word to its own."""

from typing import Any

import numpy as np
import pytest

import hpccomm
from hpccomm.gradients import GradientSync

KINDS = {
    # How each is made, and the word by which it ends.
    "Communicator": (lambda comm: comm.dup(), "finalize"),
    "Grid": (lambda comm: comm.grid((1,)), "finalize"),
    "Mesh": (lambda comm: comm.mesh((1,), ("data",)), "finalize"),
    "Window": (lambda comm: comm.window(np.zeros(1)), "close"),
    "Counter": (lambda comm: comm.counter(), "close"),
    "Mutex": (lambda comm: comm.mutex(), "close"),
    "Handle": (lambda comm: comm.register_pre_hook(print), "close"),
    "ProgramRecorder": (lambda comm: comm.record(), "close"),
    "GradientSync": (lambda comm: GradientSync(comm, {"w": np.zeros(1)}), "close"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_ends_by_its_word_and_others_lead_to_it(kind: str) -> None:
    make, word = KINDS[kind]
    others = {"finalize", "close", "end"} - {word}
    if word == "close" and kind != "GradientSync":  # which removes a parameter by that word
        others.add("remove")
    with hpccomm.new_comm("loopback") as comm:
        made: Any = make(comm)
        assert type(made).__name__ == kind
        for other in others:
            with pytest.raises(AttributeError, match=rf"ends by {word}\(\)"):
                getattr(made, other)
        for _ in range(2):
            getattr(made, word)()
