"""hpccomm.torch in one process, on the last GPU: results that are copied late, contexts.

Run it where PyTorch, an MPI library and a GPU are::

    python benchmarks/device_torch.py

The program calls no ``torch.cuda.set_device``. A verdict stands in a line of its own; the exit status
is 1 if one fails.
"""

import sys
from typing import Any

from contest.device import contexts_on
from contest.verdicts import Verdicts

COUNT, TIMES = 64 << 20, 20
"""Elements of a tensor, and how often it is gathered."""


def copied_late(verdicts: Verdicts, device: Any) -> None:
    """Gather into a list, which is copied when the future is asked for, and go on allocating.

    PyTorch's allocator gives memory that was dropped to the stream that it is of, at once: a copy on
    another stream must hold it (``Tensor.record_stream``).
    """
    import torch
    import torch.distributed as dist

    wrong = 0
    for number in range(TIMES):
        given = torch.full((COUNT,), float(number), device=device)
        got = [torch.empty_like(given)]
        future = dist.all_gather(got, given, async_op=True).get_future()
        for _ in range(4):
            torch.empty_like(given).fill_(-1)
        future.wait()
        wrong += int((got[0] != number).any())
    text = f"{wrong} of {TIMES} wrong" if wrong else "right"
    verdicts.limit(not wrong, f"all_gather into a list, get_future, tensors made meanwhile: {text}")


def main() -> None:
    """Check and print."""
    import torch
    import torch.distributed as dist

    import hpccomm.torch

    verdicts = Verdicts(shown=True)
    own = torch.cuda.device_count() - 1
    device = torch.device("cuda", own)
    print(f"# PyTorch {torch.__version__}, device {device}")
    with verdicts.part("hpccomm.torch in one process"):
        hpccomm.torch.init(device_id=device)
        copied_late(verdicts, device)
        contexts_on([own], verdicts)
        dist.destroy_process_group()
    sys.exit(verdicts.failed)


if __name__ == "__main__":
    main()
