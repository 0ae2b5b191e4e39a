"""torch.distributed's calls on tensors of a device, on the stand-in's PyTorch.

Memory: PyTorch's documentation of ``Tensor.record_stream``, which the stand-in's allocator holds programs to. Results:
its documentation of ``Work`` ("the output can be utilized on the default stream without further synchronization") and
of ``get_future``.
"""

from importlib import import_module
from types import SimpleNamespace

import pytest
from nccl_ranks import run_ranks
from until import until

pytestmark = pytest.mark.standin

COUNT = 5000


def settled_elsewhere(torch, work):
    """On the stream that is current where somebody asks whether it is over."""
    with torch.cuda.stream(torch.cuda.Stream()):
        until(work.is_completed)
    work.wait()


WAYS = {
    "wait": lambda torch, work: work.wait(),
    "future": lambda torch, work: work.get_future().wait(),
    # Whose own stream alone is behind the copy then.
    "future and wait": lambda torch, work: (work.get_future(), work.wait()),
    "elsewhere": settled_elsewhere,
    "question": lambda torch, work: until(work.is_completed),
}


@pytest.mark.parametrize("backend", ["nccl", "loopback"])  # the latter by way of the host
@pytest.mark.parametrize("way", WAYS)
def test_copies_to_tensors_are_there_and_their_source_is_kept(way, backend, monkeypatch):
    torch, control = import_module("torch"), import_module("standin.control")
    module = import_module("hpccomm.torch.group")
    monkeypatch.setenv("STANDIN_DELAY", "0.04")  # on other streams than the program's own
    options = SimpleNamespace(timeout=None, asyncOp=True)

    def main(comm):
        torch.cuda.set_device(comm.rank)
        stream = torch.cuda.Stream()
        control.punctual.add(f"stream {stream.cuda_stream:#x}")
        with torch.cuda.stream(stream):
            program(comm)

    def program(comm):
        group = module.HpccommGroup(comm, "0", None)
        x = torch.full((COUNT,), comm.rank + 1.0, device="cuda")
        parts = [torch.zeros(COUNT, device="cuda") for _ in range(comm.size)]
        turned = torch.ones((COUNT, 2), device="cuda").t()
        works = [group.allgather([parts], [x], options), group.allreduce([turned], options)]
        while works:
            WAYS[way](torch, works.pop())
        other = torch.full((COUNT * comm.size,), -1.0, device="cuda")  # it goes on allocating
        sums = [each.tolist() for each in (*parts, turned)]
        assert sums == [[1.0] * COUNT, [2.0] * COUNT, [[2.0] * COUNT] * 2]
        assert set(other.tolist()) == {-1.0}

    run_ranks(2, main, backend=backend)


@pytest.mark.parametrize(
    ("given", "current", "taken"),
    [("cuda:3", None, 3), (4, 2, 4), (None, 2, 2), ("cpu", 2, 2), (None, None, 0)],
)
def test_the_communicator_is_made_for_the_programs_device(given, current, taken):
    """PyTorch's documentation of init_process_group: device_id is "a single, specific device this process will work on"."""
    torch = import_module("torch")
    backend = import_module("hpccomm.torch")

    def main(comm):
        if current is not None:
            torch.cuda.set_device(current)
        device = torch.device(given) if isinstance(given, str) else given
        backend.init(**({} if device is None else {"device_id": device}))
        made = backend.communicator()
        assert made.device == taken
        made.finalize()  # of ranks that are threads, shutdown() leaves the device claimed
        torch.distributed.group.WORLD.shutdown()

    run_ranks(1, main)
