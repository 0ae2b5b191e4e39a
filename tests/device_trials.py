"""Device arrays of any dtype, and calls on them beside the suite's oracle, with any keyword arguments."""

from dataclasses import replace

import cupy
import numpy as np

from front.device_calls import DeviceTrial
from front.device_inputs import stream_of
from hpccomm.testing.conformance.trials import trial


def carried_out(comm, spec, **how):
    """Make the call of `spec` on device arrays, twice, and check it; collective over `comm`."""
    host = trial(comm, spec)
    host = replace(host, arguments={**host.arguments, **how})
    with stream_of(comm) as stream:
        DeviceTrial(host, cupy).run(comm, "call")
        stream.synchronize()


def device_array(x):
    """Return a device array with a host array's bits; CuPy itself makes none of float8."""
    return cupy.ndarray(x.shape, x.dtype, cupy.asarray(x.view(np.uint8)).data)


def host_array(x):
    """Return the elements of a device array, of one axis, after the current stream's work."""
    cupy.cuda.get_current_stream().synchronize()
    return cupy.ndarray((x.nbytes,), np.uint8, x.data).get().view(x.dtype)
