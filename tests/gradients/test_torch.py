"""PyTorch's parameters and gradients in host memory."""

import numpy as np
import pytest

from hpccomm import Communicator, UsageError
from hpccomm.gradients import GradientSync
from hpccomm.testing import run_ranks

torch = pytest.importorskip("torch")


def test_a_module_is_a_model_and_its_gradients_are_reduced_in_place() -> None:
    def body(comm: Communicator) -> None:
        module = torch.nn.Linear(3, 2)
        with torch.no_grad():
            module.weight.fill_(comm.rank)
            module.bias.fill_(1)
        sync = GradientSync(comm, module.named_parameters())
        sync.broadcast_parameters(root=1)
        assert (module.weight == 1).all()
        module(torch.full((1, 3), float(comm.rank))).sum().backward()
        assert sync.sync({name: each.grad for name, each in module.named_parameters()})
        assert (module.weight.grad == 0.5).all()
        assert (module.bias.grad == 1).all()
        # Gradients that autograd writes to the buckets need no copy.
        for name, each in module.named_parameters():
            each.grad = torch.from_numpy(sync.gradients[name])
        sync.zero()
        module(torch.full((1, 3), 4.0 * comm.rank)).sum().backward()
        assert sync.sync()
        assert (module.weight.grad == 2).all()
        np.testing.assert_array_equal(sync.gradients["bias"], 1)

    run_ranks(2, body)


def test_a_tensor_that_numpy_cannot_share_is_refused() -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(UsageError, match="parameter 'w' cannot be shared by DLPack"):
            GradientSync(comm, {"w": torch.zeros(3, dtype=torch.bfloat16)})

    run_ranks(1, body)
