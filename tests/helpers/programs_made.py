"""Recorded programs with asynchronous calls and messages, and their models."""

from recordings_made import all_reduce, repeated

from hpccomm.results import recording as lateness
from hpccomm.results.recording import ASYNC, POLLED, CallSignature, Recording
from hpccomm.tools.programs import steps
from hpccomm.tools.programs.model import ProgramModel, model, predict


def of(recording: Recording) -> ProgramModel:
    """Return the model of a recording."""
    found = steps.steps(recording, lateness.collectives(recording))
    return model(recording, found)


def error(program: ProgramModel) -> float:
    """Return by which part the prediction of a model differs from what was recorded."""
    return abs(predict(program).seconds / program.seconds - 1)


def message(way, peer, nbytes=64, mode=POLLED):
    """Return what a record says of a call of `send` (``dst``) or `recv` (``src``)."""
    values = {"dst": None, "src": None, "tag": 0} | {way: peer}
    return CallSignature("send" if way == "dst" else "recv", 0, nbytes, mode, values)


def overlapped(ranks=2, number=6):
    """Return a program of two asynchronous calls a step, which take turns, and computation beside them."""
    one, two, final = all_reduce(1 << 20, ASYNC), all_reduce(1 << 18, ASYNC), all_reduce(64, POLLED)
    calls = (
        [(one, rank, 31, 40, 0), (two, rank + 2, 50, 40.001, 9.999), (final, 60 + rank, 64)]
        for rank in range(ranks)
    )
    return repeated(*calls, steps=number, mark=99)
