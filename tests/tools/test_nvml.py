"""A device's links from NVIDIA's management library, by a library that answers like it."""

import sys
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest

from hpccomm.tools.nvml import fastest_link, path

UUID = "GPU-5f3c2b1a-0000-1111-2222-333344445555"


class NVMLError(Exception):
    pass


def nvml() -> Any:
    """Return a module ``pynvml``: the machine has the device `there`, and those `beside` it."""
    it: Any = SimpleNamespace(__spec__=SimpleNamespace(), there=None, beside=[], under_way=0)

    def begin():
        if it.there is None:
            raise NVMLError("Driver Not Loaded")
        it.under_way += 1

    def end():
        it.under_way -= 1

    def by_uuid(uuid):
        for each in (it.there, *it.beside):
            if uuid == each.uuid:
                return each
        raise NVMLError("Not Found")

    def link_state(handle, link):
        if link >= len(handle.links):
            raise NVMLError("Invalid Argument")
        return handle.links[link]

    def field_values(handle, fields):
        number = {90: handle.speed, 170: handle.chips}[fields[0]]
        told = 0 if number is not None else 3
        return [SimpleNamespace(nvmlReturn=told, value=SimpleNamespace(uiVal=number))]

    vars(it).update(
        {
            "NVMLError": NVMLError,
            "NVML_SUCCESS": 0,
            "NVML_FEATURE_ENABLED": 1,
            "NVML_NVLINK_MAX_LINKS": 36,
            "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON": 90,
            "NVML_FI_DEV_C2C_LINK_COUNT": 170,
            "NVML_NVLINK_DEVICE_TYPE_SWITCH": 2,
            "NVML_CLOCK_MEM": 2,
            "nvmlInit": begin,
            "nvmlShutdown": end,
            "nvmlDeviceGetHandleByUUID": by_uuid,
            "nvmlDeviceGetNvLinkState": link_state,
            "nvmlDeviceGetFieldValues": field_values,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: handle.generation,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda handle: 16,
            "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=handle.uuid.encode()),
            "nvmlDeviceGetNvLinkRemoteDeviceType": (
                lambda handle, link: 2 if handle.ends[link] == "switch" else 0
            ),
            "nvmlDeviceGetNvLinkRemotePciInfo": (
                lambda handle, link: SimpleNamespace(busId=handle.ends[link].encode())
            ),
            "nvmlDeviceGetMaxClockInfo": lambda handle, clock: {2: handle.clock}[clock],
            "nvmlDeviceGetMemoryBusWidth": lambda handle: handle.bits,
        }
    )
    return it


@pytest.fixture
def library(monkeypatch):
    """Put it in the place of the package."""
    made = nvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    yield made
    assert made.under_way == 0  # what was begun was ended


def device(links=(), speed=None, generation=5, chips=None, **more):
    facts = {"uuid": UUID, **more}
    return SimpleNamespace(links=links, speed=speed, generation=generation, chips=chips, **facts)


def test_the_double_is_as_the_package():
    """Names, numbers, and how many arguments functions take: nvidia-ml-py."""
    real = pytest.importorskip("pynvml")
    for name, value in vars(nvml()).items():
        if name.startswith("NVML_"):
            assert getattr(real, name) == value, name
        elif name.startswith("nvml"):
            ours, theirs = (
                len(signature(each).parameters) for each in (value, getattr(real, name))
            )
            assert ours == theirs, name


def test_nvlink_is_the_sum_of_the_links_that_are_up(library):
    library.there = device(links=(1,) * 17 + (0,), speed=26562)
    link = fastest_link(UUID)
    assert link == ("NVLink, 17 of 26.562 GB/s", pytest.approx(17 * 26.562))


@pytest.mark.parametrize(("links"), [(), (0, 0)])
def test_without_nvlink_it_is_pci_express(library, links):
    library.there = device(links=links)
    assert fastest_link(UUID) == ("PCI Express 5 x16", pytest.approx(63.0, rel=1e-3))


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
    assert fastest_link(UUID) is None


def test_the_host_is_reached_by_pci_express_or_from_one_chip_to_the_other(library):
    library.there = device(links=(1,) * 18, speed=26562)
    assert path(UUID, None) == ("PCI Express 5 x16", pytest.approx(63.0, rel=1e-3))
    library.there = device(links=(1,) * 18, speed=26562, chips=10)
    assert path(UUID, None) == ("NVLink-C2C", 0.0)  # its peak is not known


@pytest.mark.parametrize(
    ("clock", "bits", "peak"),
    [(2619, 5120, 3350), (1215, 5120, 1555), (6251, 192, 300)],
    ids=["H100 SXM", "A100 40GB", "L4"],
)
def test_the_peak_of_a_memory_is_that_of_the_data_sheets(library, clock, bits, peak):
    """NVIDIA's data sheets of the three, in GB/s; clocks as nvidia-smi has them (``clocks.max.mem``)."""
    library.there = device(clock=clock, bits=bits)
    name, found = path(UUID, UUID)
    assert found == pytest.approx(peak, rel=0.005)
    assert name == f"memory, {bits} bits at {clock} MHz"


def test_between_devices_are_the_links_that_lead_to_the_other_one_or_to_a_switch(library):
    near, far = "near", "far"
    ends = [near, near, far, "switch"]
    library.there = device(links=(1, 1, 1, 0), speed=25781, ends=ends)
    library.beside = [device(uuid=near), device(uuid=far, generation=4), device(uuid="none")]
    assert path(UUID, near) == ("NVLink, 2 of 25.781 GB/s", pytest.approx(51.562))
    assert path(UUID, far) == ("NVLink, 1 of 25.781 GB/s", pytest.approx(25.781))
    assert path(UUID, "none") == ("PCI Express 5 x16", pytest.approx(63.0, rel=1e-3))
    library.there = device(links=(1,) * 4, speed=25781, ends=["switch"] * 4)
    assert path(UUID, far) == ("NVLink, 4 of 25.781 GB/s", pytest.approx(103.124))
    library.there = device()  # and without any, the slower slot of the two
    assert path(UUID, far) == ("PCI Express 4 x16", pytest.approx(31.5, rel=1e-3))
    assert path(UUID, "another") is None


def test_without_the_library_nothing_is_known(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert fastest_link(UUID) is None
