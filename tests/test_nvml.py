"""A device's links from NVIDIA's management library, by a library that answers like it."""

import sys
from inspect import signature
from types import SimpleNamespace

import pytest

from hpccomm.memory.cuda import nvml

UUID = "GPU-5f3c2b1a-0000-1111-2222-333344445555"

LIBRARY = """
from types import SimpleNamespace

class NVMLError(Exception):
    pass

NVML_SUCCESS, NVML_FEATURE_ENABLED = 0, 1
NVML_NVLINK_MAX_LINKS = 36
NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90
NVML_FI_DEV_C2C_LINK_COUNT = 170
NVML_NVLINK_DEVICE_TYPE_GPU, NVML_NVLINK_DEVICE_TYPE_SWITCH = 0, 2
NVML_CLOCK_MEM = 2
there, beside = None, []
under_way = 0

def nvmlInit():
    global under_way
    if there is None:
        raise NVMLError("Driver Not Loaded")
    under_way += 1

def nvmlShutdown():
    global under_way
    under_way -= 1

def nvmlDeviceGetHandleByUUID(uuid):
    for each in (there, *beside):
        if uuid == each.uuid:
            return each
    raise NVMLError("Not Found")

def nvmlDeviceGetNvLinkState(handle, link):
    if link >= len(handle.links):
        raise NVMLError("Invalid Argument")
    return handle.links[link]

def nvmlDeviceGetFieldValues(handle, fields):
    (field,) = fields
    number = {NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: handle.speed, NVML_FI_DEV_C2C_LINK_COUNT: handle.chips}[field]
    told = number is not None
    value = SimpleNamespace(uiVal=number)
    return [SimpleNamespace(nvmlReturn=NVML_SUCCESS if told else 3, value=value)]

def nvmlDeviceGetMaxPcieLinkGeneration(handle):
    return handle.generation

def nvmlDeviceGetMaxPcieLinkWidth(handle):
    return 16

def nvmlDeviceGetPciInfo(handle):
    return SimpleNamespace(busId=handle.uuid.encode())

def nvmlDeviceGetNvLinkRemoteDeviceType(handle, link):
    switched = handle.ends[link] == "switch"
    return NVML_NVLINK_DEVICE_TYPE_SWITCH if switched else NVML_NVLINK_DEVICE_TYPE_GPU

def nvmlDeviceGetNvLinkRemotePciInfo(handle, link):
    return SimpleNamespace(busId=handle.ends[link].encode())

def nvmlDeviceGetMaxClockInfo(handle, clock):
    assert clock == NVML_CLOCK_MEM
    return handle.clock

def nvmlDeviceGetMemoryBusWidth(handle):
    return handle.bits
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A module ``pynvml``; its `there` is the device that the machine has."""
    (tmp_path / "pynvml.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    import pynvml

    yield pynvml
    assert pynvml.under_way == 0  # what was begun was ended
    del sys.modules["pynvml"]  # not by monkeypatch, which would put it back


def device(links=(), speed=None, generation=5, chips=None, **more):
    facts = {"uuid": UUID, **more}
    return SimpleNamespace(links=links, speed=speed, generation=generation, chips=chips, **facts)


def test_the_double_is_as_the_package():
    """Names, numbers, and how many arguments functions take: nvidia-ml-py."""
    real, double = pytest.importorskip("pynvml"), {}
    exec(LIBRARY, double)
    for name, value in double.items():
        if name.startswith("NVML_"):
            assert getattr(real, name) == value, name
        elif name.startswith("nvml"):
            ours, theirs = (
                len(signature(each).parameters) for each in (value, getattr(real, name))
            )
            assert ours == theirs, name


def test_nvlink_is_the_sum_of_the_links_that_are_up(library):
    library.there = device(links=(1,) * 17 + (0,), speed=26562)
    link = nvml.fastest_link(UUID)
    assert link == ("NVLink, 17 of 26.562 GB/s", pytest.approx(17 * 26.562))


@pytest.mark.parametrize(("links"), [(), (0, 0)])
def test_without_nvlink_it_is_pci_express(library, links):
    library.there = device(links=links)
    assert nvml.fastest_link(UUID) == ("PCI Express 5 x16", pytest.approx(63.0, rel=1e-3))


@pytest.mark.parametrize(
    "there",
    [
        None,
        device(links=(1,)),  # a link that is up and does not tell its speed
        device(generation=99),
        SimpleNamespace(uuid="another"),
    ],
)
def test_what_it_does_not_tell_is_not_known(library, there):
    library.there = there
    assert nvml.fastest_link(UUID) is None


def test_the_host_is_reached_by_pci_express_or_from_one_chip_to_the_other(library):
    library.there = device(links=(1,) * 18, speed=26562)
    assert nvml.path(UUID, None) == ("PCI Express 5 x16", pytest.approx(63.0, rel=1e-3))
    library.there = device(links=(1,) * 18, speed=26562, chips=10)
    assert nvml.path(UUID, None) == ("NVLink-C2C", 0.0)  # its peak is not known


@pytest.mark.parametrize(
    ("clock", "bits", "peak"),
    [(2619, 5120, 3350), (1215, 5120, 1555), (6251, 192, 300)],
    ids=["H100 SXM", "A100 40GB", "L4"],
)
def test_the_peak_of_a_memory_is_that_of_the_data_sheets(library, clock, bits, peak):
    """NVIDIA's data sheets of the three, in GB/s; clocks as nvidia-smi has them (``clocks.max.mem``)."""
    library.there = device(clock=clock, bits=bits)
    name, found = nvml.path(UUID, UUID)
    assert found == pytest.approx(peak, rel=0.005)
    assert name == f"memory, {bits} bits at {clock} MHz"


def test_between_devices_are_the_links_that_lead_to_the_other_one_or_to_a_switch(library):
    near, far = "near", "far"
    ends = [near, near, far, "switch"]
    library.there = device(links=(1, 1, 1, 0), speed=25781, ends=ends)
    library.beside = [device(uuid=near), device(uuid=far, generation=4), device(uuid="none")]
    assert nvml.path(UUID, near) == ("NVLink, 2 of 25.781 GB/s", pytest.approx(51.562))
    assert nvml.path(UUID, far) == ("NVLink, 1 of 25.781 GB/s", pytest.approx(25.781))
    assert nvml.path(UUID, "none") == ("PCI Express 5 x16", pytest.approx(63.0, rel=1e-3))
    library.there = device(links=(1,) * 4, speed=25781, ends=["switch"] * 4)
    assert nvml.path(UUID, far) == ("NVLink, 4 of 25.781 GB/s", pytest.approx(103.124))
    library.there = device()  # and without any, the slower slot of the two
    assert nvml.path(UUID, far) == ("PCI Express 4 x16", pytest.approx(31.5, rel=1e-3))
    assert nvml.path(UUID, "another") is None


def test_without_the_library_nothing_is_known(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert nvml.fastest_link(UUID) is None
