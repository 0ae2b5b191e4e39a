"""Every call on device arrays, in each form, has the result that NumPy has."""

from typing import Any

import numpy as np

from front import plans
from front.device_inputs import filled, full, holds, ranks_sum, stream_of
from hpccomm import Communicator, ReduceOp
from hpccomm.contracts.collectives import REDUCTIONS
from hpccomm.dtypes import BFLOAT16
from hpccomm.memory.cuda.library import cupy
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.collectives import FORMS, Trial, growing, trial
from hpccomm.testing.conformance.oracle import IN_PLACE, NEW, OUT, WITH_DATA, Spec

CALLS = Behaviours("devices.calls")


class DeviceTrial:
    """A trial whose arrays have twins in device memory, which the call gets instead.

    Parameters
    ----------
    host : Trial
        The call on arrays of NumPy's, which have the contents before it and after it.
    """

    def __init__(self, host: Trial, module: Any) -> None:
        self.host = host
        self._module = module
        x, out = (host.arguments.get(name) for name in ("x", "out"))
        self.twins = {
            name: module.asarray(a) for name, a in (("x", x), ("out", out)) if a is not None
        }
        if x is not None and out is not None and np.shares_memory(x, out):
            large, small = ("x", "out") if x.size >= out.size else ("out", "x")
            whole, part = self.twins[large], self.twins[small]
            own = whole.reshape(-1)[host.part.own()] if whole.size > part.size else whole
            self.twins[small] = own.reshape(part.shape)

    def to_device(self) -> None:
        """Give the twins the arrays' contents."""
        for name, twin in self.twins.items():
            twin[...] = self._module.asarray(self.host.arguments[name])

    def to_host(self) -> None:
        """Give the arrays the twins' contents. Blocks."""
        for name, twin in self.twins.items():
            self.host.arguments[name][...] = twin.get()

    def run(self, comm: Communicator, form: str) -> None:
        """Make the call twice, with other values, and check its arrays and its result."""
        arguments = {**self.host.arguments, **self.twins}
        name = self.host.part.spec.call
        call = getattr(comm, name)
        planned = comm.plan(name, **arguments) if form == "plan" else None
        for seed in range(2):
            self.host.fill(seed)
            self.to_device()
            if planned is not None:
                result = planned()
            elif form == "asynchronous":
                result = call(**arguments, async_op=True).wait()
            else:
                result = call(**arguments)
            self.to_host()
            if result is not None:
                assert result.device.id == comm.device, (
                    "the result lies on the communicator's device"
                )
                given = [key for key, twin in self.twins.items() if twin is result]
                result = self.host.arguments[given[0]] if given else result.get()
            self.host.check(result, f"{self.host.part.spec}, {form}", seed=seed)


@CALLS.behaviour(collective=WITH_DATA, form=FORMS)
def every_collective(comm: Communicator, collective: str, form: str) -> None:
    """Into new arrays, into `out`, and in place; of blocks of one size and of any; ranks may differ in it."""
    counts: list[int | tuple[int, ...]] = [3, 5_001]
    if collective in ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"):
        counts.append(growing(comm.size))
    kinds: list[tuple[Any, Any]] = [(np.float32, ReduceOp.SUM)]
    if collective in REDUCTIONS:
        kinds += [(BFLOAT16, ReduceOp.SUM), (np.int32, ReduceOp.BXOR)]
    for dtype, op in kinds:
        for count in counts if dtype is np.float32 else counts[-1:]:
            for results in ((NEW,), (IN_PLACE,), (OUT, IN_PLACE)):
                spec = Spec(collective, count, np.dtype(dtype), op, comm.size - 1, results=results)
                with stream_of(comm) as stream:
                    DeviceTrial(trial(comm, spec), cupy()).run(comm, form)
                    stream.synchronize()


@CALLS.behaviour()
def planned(comm: Communicator) -> None:
    """Plans are observed as calls are, and take their place in batches."""
    with stream_of(comm):
        plans.observed_alike(comm, cupy())
        x = filled(comm)
        plan = comm.plan("all_reduce", x)
        with comm.batch():
            plan()
        holds(x, full(ranks_sum(comm)), "in a batch")
