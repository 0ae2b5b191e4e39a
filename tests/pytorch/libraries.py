"""Libraries that build on torch.distributed, after `hpccomm.torch.init`: ``mpiexec -n 2 python libraries.py NAME``."""

import sys
import tempfile

import torch
import torch.distributed as dist

import hpccomm.torch


class Net(torch.nn.Module):
    """One layer, as `transformers.Trainer` takes a model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())  # DistributedDataParallel has all begin with rank 0's
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x).square().mean()}


DATA = [{"x": torch.full((4,), each / 16)} for each in range(16)]


def accelerate() -> tuple[int, torch.nn.Module]:
    from accelerate import Accelerator

    accelerator, net = Accelerator(cpu=True), Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = torch.utils.data.DataLoader(DATA, batch_size=2)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    steps = 0
    for batch in loader:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return steps, net


def transformers() -> tuple[int, torch.nn.Module]:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        tempfile.mkdtemp(), use_cpu=True, per_device_train_batch_size=2, num_train_epochs=1,
        report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(Net(), arguments, train_dataset=DATA)
    return trainer.train().global_step, trainer.model


def lightning() -> tuple[int, torch.nn.Module]:
    from lightning import LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = Trainer(
        accelerator="cpu", devices=dist.get_world_size(), max_epochs=1, logger=False,
        strategy=DDPStrategy(process_group_backend="hpccomm"), enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(DATA, batch_size=2))
    return trainer.global_step, module.net


def main() -> None:
    torch.set_num_threads(1)
    hpccomm.torch.init()
    steps, net = globals()[sys.argv[1]]()
    weights = [torch.empty(2, 4) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, next(net.parameters()).detach())
    assert all(torch.equal(each, weights[0]) for each in weights)
    print(f"{dist.get_backend()}: {steps} steps of {dist.get_world_size()} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
