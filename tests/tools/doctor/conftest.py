"""An NVML of two GPUs for the doctor's sources; `test_the_double_of_nvml_is_as_the_package` compares it."""

import sys
from types import SimpleNamespace

import pytest


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """An idle NVML with two devices; the second cannot tell its ECC. The far end of the second link is hidden."""

    def ecc_mode(handle):
        if handle:
            raise NVMLError("Not Supported")
        return [1, 1]

    def link_state(device, link):
        if link >= 3:
            raise NVMLError("Invalid Argument")
        return int(link < 2)

    def remote(device, link):
        if link == 1:
            raise NVMLError("Not Supported")
        return SimpleNamespace(domain=0, bus=0xC4, device=0)

    pci = SimpleNamespace(busId=b"00000000:3B:00.0", domain=0, bus=0x3B, device=0)
    field = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=25_781))
    double = SimpleNamespace(
        __spec__=SimpleNamespace(),  # it is found
        NVMLError=NVMLError,
        NVML_NVLINK_MAX_LINKS=36,
        NVML_FEATURE_ENABLED=1,
        NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON=90,
        NVML_SUCCESS=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.65.06",
        nvmlSystemGetCudaDriverVersion_v2=lambda: 13000,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "NVIDIA H100 80GB HBM3",
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetPciInfo=lambda handle: pci,
        nvmlDeviceGetVbiosVersion=lambda handle: "96.00",
        nvmlDeviceGetPersistenceMode=lambda handle: 1,
        nvmlDeviceGetMigMode=lambda device: [0, 0],
        nvmlDeviceGetEccMode=ecc_mode,
        nvmlDeviceGetRemappedRows=lambda device: (0, 0, 0, 0),
        nvmlDeviceGetTotalEccErrors=lambda handle, errortype, countertype: (
            10 * errortype + countertype
        ),
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 4,
        nvmlDeviceGetComputeMode=lambda handle: 0,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [object()],
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=0, memory=0),
        nvmlDeviceGetCurrPcieLinkGeneration=lambda handle: 3,
        nvmlDeviceGetMaxPcieLinkGeneration=lambda handle: 5,
        nvmlDeviceGetCurrPcieLinkWidth=lambda handle: 16,
        nvmlDeviceGetMaxPcieLinkWidth=lambda handle: 16,
        nvmlDeviceGetP2PStatus=lambda device1, device2, p2pindex: p2pindex,
        nvmlDeviceGetNvLinkState=link_state,
        nvmlDeviceGetNvLinkRemotePciInfo=remote,
        nvmlDeviceGetFieldValues=lambda handle, fieldids: [field],
    )
    monkeypatch.setitem(sys.modules, "pynvml", double)
    return double
