"""The training examples of docs/examples run, and learn what one process without hpccomm learns."""

import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from conftest import Mpiexec

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/examples"
sys.path.append(str(FOLDER))

import digits  # noqa: E402

pytestmark = pytest.mark.skipif(not find_spec("sklearn"), reason="no scikit-learn")
EPOCHS, BATCH, RATE = 2, 60, 0.05


@cache
def alone() -> list[tuple[float, float]]:
    """Loss and accuracy after each epoch of a plain loop over whole batches, in float64."""
    training, others = digits.load(dtype=np.float64)
    model = digits.initial((32, 16))
    model = {name: x.astype(np.float64) for name, x in model.items()}
    descent = digits.Momentum(model, RATE)
    found = []
    for epoch in range(1, EPOCHS + 1):
        for indices, count in digits.shares(len(training), BATCH, epoch, 0, 1):
            assert len(indices) == count
            descent.update(dict(digits.backward(model, training[indices], count)))
        found.append(digits.judge(model, others))
    return found


@pytest.mark.slow("three ranks import scikit-learn, and train")
@pytest.mark.parametrize(
    ("ranks", "program", "options"),
    [
        pytest.param(1, "train_digits.py", [], marks=pytest.mark.thorough),
        (3, "train_digits.py", []),
        pytest.param(3, "train_digits.py", ["--wait"], marks=pytest.mark.thorough),
        pytest.param(1, "train_digits_torch.py", ["--wait"], marks=pytest.mark.thorough),
        pytest.param(3, "train_digits_torch.py", [], marks=pytest.mark.thorough),
        pytest.param(3, "train_cupy.py", ["--numpy"], marks=pytest.mark.thorough),
        # On the stand-in for CuPy.
        pytest.param(2, "train_cupy.py", [], marks=pytest.mark.thorough),
    ],
)
def test_an_example_learns_what_one_process_learns(
    mpiexec: Mpiexec, ranks: int, program: str, options: list[str]
) -> None:
    if "torch" in program and not find_spec("torch"):
        pytest.skip("no PyTorch")
    on_device = program == "train_cupy.py" and not options
    options = [*options, "--epochs", str(EPOCHS), "--batch", str(BATCH), "--hidden", "32", "16"]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/standin'}"} if on_device else {}
    done = mpiexec(ranks, FOLDER / program, *options, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r"epoch \d: loss ([\d.]+), accuracy ([\d.]+)% on other", done.stdout)
    assert len(told) == EPOCHS, done.stdout
    for (loss, accuracy), (true_loss, right) in zip(told, alone(), strict=True):
        assert float(loss) == pytest.approx(true_loss, rel=1e-3)
        assert float(accuracy) == pytest.approx(100 * right, abs=0.4)  # one image of 297
    assert float(accuracy) > 85
    steps = EPOCHS * 25
    assert f"{ranks} ranks; rank 0: {steps} steps reduced of {steps}" in done.stdout
