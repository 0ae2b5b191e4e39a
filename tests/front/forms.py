"""The forms of a call: each gives one result, as `Communicator` says of async_op, plan and batch."""

from typing import Any

from hpccomm import Communicator
from hpccomm.testing.conformance.collectives import FORMS

ALL_FORMS = (*FORMS, "batch")


def made(comm: Communicator, form: str, call: str, *its: Any, **how: Any) -> Any:
    """Make a call in one of `ALL_FORMS`, and return its result; by a plan it is made twice."""
    if form == "plan":
        planned = comm.plan(call, *its, **how)
        planned()
        return planned()
    if form == "asynchronous":
        return getattr(comm, call)(*its, **how, async_op=True).wait()
    if form == "batch":
        with comm.batch():
            return getattr(comm, call)(*its, **how)
    return getattr(comm, call)(*its, **how)
