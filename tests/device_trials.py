"""Calls on device arrays beside the suite's oracle, with any keyword arguments."""

from dataclasses import replace

import cupy

from front.device_calls import DeviceTrial
from front.device_inputs import stream_of
from hpccomm.testing.conformance.trials import trial


def carried_out(comm, spec, **how):
    """Make the call of `spec` on device arrays, twice, and check it; collective over `comm`."""
    host = trial(comm, spec, frozen=False)
    host = replace(host, arguments={**host.arguments, **how})
    with stream_of(comm) as stream:
        DeviceTrial(host, cupy).run(comm, "call")
        stream.synchronize()
