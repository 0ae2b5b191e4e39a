"""What NVIDIA's management library tells of a device's links, by a library that answers as it does."""

import sys
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
there = None
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
    if uuid != there.uuid:
        raise NVMLError("Not Found")
    return there

def nvmlDeviceGetNvLinkState(handle, link):
    if link >= len(handle.links):
        raise NVMLError("Invalid Argument")
    return handle.links[link]

def nvmlDeviceGetFieldValues(handle, fields):
    assert fields == [NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON]
    told = handle.speed is not None
    value = SimpleNamespace(uiVal=handle.speed)
    return [SimpleNamespace(nvmlReturn=NVML_SUCCESS if told else 3, value=value)]

def nvmlDeviceGetMaxPcieLinkGeneration(handle):
    return handle.generation

def nvmlDeviceGetMaxPcieLinkWidth(handle):
    return 16
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


def device(links=(), speed=None, generation=5):
    return SimpleNamespace(uuid=UUID, links=links, speed=speed, generation=generation)


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


def test_without_the_library_nothing_is_known(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert nvml.fastest_link(UUID) is None
