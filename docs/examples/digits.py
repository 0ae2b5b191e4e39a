"""A small network that reads handwritten digits: what the training examples share.

Arrays are NumPy's or CuPy's: the network uses only operators, methods and NumPy's ufuncs, which CuPy's arrays take as
well. Nothing here communicates.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

Array = Any  # of NumPy or CuPy
Model = dict[str, Array]
"""Parameters by name, in the order of the forward pass: ``"weight0"``, ``"bias0"``, ``"weight1"``, ..."""

DIGITS = 10
PIXELS = 64


@dataclass(frozen=True)
class Images:
    """Images of digits, and which digits they are.

    Attributes
    ----------
    pixels : array of shape (count, 64)
        From 0 to 1.
    targets : array of shape (count, 10)
        1 at the digit, else 0.
    """

    pixels: Array
    targets: Array

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, chosen: Any) -> "Images":
        return Images(self.pixels[chosen], self.targets[chosen])


def load(seed: int = 0, test: int = 297, dtype: Any = np.float32) -> tuple[Images, Images]:
    """Return scikit-learn's 1797 digits, shuffled by a seed: those to train on, and `test` others to judge by."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(seed).permutation(len(digits))
    every = Images((pixels / 16).astype(dtype), np.eye(DIGITS, dtype=dtype)[digits])[shuffled]
    return every[test:], every[:test]


def on(asarray: Any, images: Images) -> Images:
    """Return the images as arrays that `asarray` makes, such as ``cupy.asarray``."""
    return Images(asarray(images.pixels), asarray(images.targets))


def initial(hidden: Iterable[int], seed: int = 0, dtype: Any = np.float32) -> Model:
    """Return a model of layers with `hidden` units between pixels and digits, drawn as in He et al. 2015."""
    random = np.random.default_rng(seed)
    widths = [PIXELS, *hidden, DIGITS]
    model: Model = {}
    for layer, (inward, outward) in enumerate(pairwise(widths)):
        weight = random.normal(0, np.sqrt(2 / inward), (inward, outward))
        model[f"weight{layer}"] = weight.astype(dtype)
        model[f"bias{layer}"] = np.zeros(outward, dtype)
    return model


def _activations(model: Mapping[str, Array], x: Array) -> list[Array]:
    """Return what goes into each layer, and at the end the scores of the digits."""
    found, last = [x], len(model) // 2 - 1
    for layer in range(last + 1):
        x = x @ model[f"weight{layer}"] + model[f"bias{layer}"]
        if layer < last:
            x = np.maximum(x, 0)
        found.append(x)
    return found


def _log_softmax(scores: Array) -> Array:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def backward(model: Mapping[str, Array], images: Images, count: int) -> Iterator[tuple[str, Array]]:
    """Compute the gradients of the cross entropy, from the last layer to the first, and yield each when it is known.

    The loss is the sum over `images` divided by `count`. If that is the number of all ranks' images, the sum of all
    ranks' gradients is the gradient of the mean over all images, however uneven the shares are.
    """
    *inputs, scores = _activations(model, images.pixels)
    error = (np.exp(_log_softmax(scores)) - images.targets) / count
    for layer in reversed(range(len(inputs))):
        yield f"bias{layer}", error.sum(axis=0)
        yield f"weight{layer}", inputs[layer].T @ error
        if layer:
            error = (error @ model[f"weight{layer}"].T) * (inputs[layer] > 0)


def judge(model: Mapping[str, Array], images: Images) -> tuple[float, float]:
    """Return the mean cross entropy, and the share of images that are read rightly."""
    scores = _activations(model, images.pixels)[-1]
    loss = -(_log_softmax(scores) * images.targets).sum() / len(images)
    of_targets = (scores * images.targets).sum(axis=1)
    right = (of_targets == scores.max(axis=1)).sum() / len(images)
    return float(loss), float(right)


class Momentum:
    """Stochastic gradient descent with momentum: each parameter keeps a velocity.

    Parameters
    ----------
    model : dict of str to array
        Is updated in place.
    rate : float
        Learning rate.
    momentum : float
        How much of the velocity stays from step to step.
    """

    def __init__(self, model: Model, rate: float, momentum: float = 0.9) -> None:
        self._model, self._rate, self._momentum = model, rate, momentum
        self._velocity = {name: 0 * x for name, x in model.items()}

    def update(self, gradients: Mapping[str, Array]) -> None:
        """Make one step."""
        for name, velocity in self._velocity.items():
            velocity *= self._momentum
            velocity += gradients[name]
            self._model[name] -= self._rate * velocity


def shares(
    count: int, batch: int, seed: int, rank: int, size: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Cut an epoch into batches, the same on all ranks, and yield this rank's indices and the size of the batch.

    The shares of a batch differ by at most one image.
    """
    shuffled = np.random.default_rng(seed).permutation(count)
    for start in range(0, count, batch):
        whole = shuffled[start : start + batch]
        yield whole[rank::size], len(whole)


def is_told(epoch: int, epochs: int) -> bool:
    """Return whether to tell of an epoch: of the last one, and of some ten in all."""
    return epoch == epochs or epoch % max(1, epochs // 10) == 0


def line(epoch: int, loss: float, accuracy: float, seconds: float) -> str:
    """Return what is told of an epoch."""
    return (
        f"epoch {epoch}: loss {loss:.5f}, accuracy {accuracy:.1%} on other images, {seconds:.2f} s"
    )
