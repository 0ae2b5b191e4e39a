"""The driver's library, as ctypes loads it: what hpccomm asks of it past the runtime. And how ctypes finds NCCL's."""

import ctypes
import struct

from standin import devices, events, graphs

NAME = "libcuda.so.1"
NCCL = "libnccl.so.2"


def behind(reference):
    """Return what a function is given by ``ctypes.byref``."""
    return reference._obj  # it has no public name


class Driver:
    """The functions. Numbers and addresses are Python's; what is given back is written by reference."""

    def cuDeviceGet(self, handle, ordinal):
        behind(handle).value = ordinal
        return 0

    def cuDeviceGetUuid_v2(self, uuid, handle):
        behind(uuid)[:] = struct.unpack("16B", devices.device(handle.value).uuid)
        return 0

    def cuDevicePrimaryCtxGetState(self, device, flags, active):
        behind(active).value = int(devices.device(device).context)
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        devices.device(device).context = True
        behind(context).value = device + 1  # a handle, which 0 is none
        return 0

    def cuCtxSetCurrent(self, context):
        devices.use(context.value - 1)
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode):
        behind(mode).value = graphs.exchange_mode(behind(mode).value)
        return 0

    def cuEventQuery(self, event):
        return events.query(event.value, driver=True)


class Loader(ctypes.CDLL):
    """ctypes.CDLL, that finds the stand-ins for the driver and NCCL under their names."""

    def __new__(cls, name=None, *args, **kwargs):
        if name == NCCL:
            from standin.nccl.library import library

            return library
        return _driver if name == NAME else super().__new__(cls)


_driver = Driver()


def install():
    """Have ctypes find it."""
    ctypes.CDLL = Loader  # type: ignore[misc]
