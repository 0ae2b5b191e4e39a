"""Elementwise update rules of optimisers, for `ShardedOptimizer` and `LocalSteps`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from hpccomm.dtypes import FLOAT32, is_narrow
from hpccomm.errors import UsageError
from hpccomm.gradients.parameters import Array, passes
from hpccomm.settings import check_bool, check_number

Rate = float | Callable[[int], float]
"""A learning rate, or a function that returns it for the number of a step, from 1."""

PASS = 1 << 15
"""Elements that are updated at once, so that temporary arrays stay in the cache."""


@dataclass(frozen=True, slots=True)
class Update:
    """An update rule with the state that it needs. It is called with flat arrays; see `ShardedOptimizer`.

    Attributes
    ----------
    name : str
        The name of the rule with its settings. Ranks compare it.
    state : mapping of str to None
        Names of its arrays of state, which begin as zeros. They are float32 for narrow parameters, else of their dtype.
    rule : callable
        ``rule(parameter, gradient, *state, step)`` writes the parameter and the state.
    """

    name: str
    state: Mapping[str, None]
    rule: Callable[..., None]

    def __call__(
        self, parameter: Array, gradient: Array, state: Mapping[str, Array], step: int
    ) -> None:
        """Update one shard in place. Local. Narrow floats are widened to float32, and rounded once.

        Parameters
        ----------
        parameter, gradient : ndarray, 1-D, of one length
            The shard's elements.
        state : mapping of str to ndarray
            Arrays of the same length, by name.
        step : int
            From 1.
        """
        arrays = (parameter, gradient, *(state[name] for name in self.state))
        narrow = is_narrow(parameter.dtype)
        for part in passes(parameter.size, PASS):
            p, g, *rest = (each[part] for each in arrays)
            if narrow:  # a small term, such as eps, may be 0 in it
                wide = p.astype(FLOAT32)
                self.rule(wide, g.astype(FLOAT32), *rest, step)
                p[:] = wide
            else:
                self.rule(p, g, *rest, step)


def sgd(
    lr: Rate, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0
) -> Update:
    """Return stochastic gradient descent. Local.

    Let g be the gradient plus `weight_decay` times the parameter. The velocity becomes ``v = momentum * v + g``, and
    ``lr * v`` is subtracted from the parameter. With `nesterov`, it is ``lr * (g + momentum * v)``. PyTorch uses the same
    form of Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning".

    Parameters
    ----------
    lr : float or callable
        The learning rate, or a function that returns it for the number of a step, from 1.
    momentum : float
        At least 0 and below 1. If it is 0, there is no state. Else the state is ``"velocity"``.
    nesterov : bool
        Whether to look ahead along the velocity. Needs a momentum above 0.
    weight_decay : float
        At least 0.

    Raises
    ------
    UsageError
        If a number does not fit.
    """
    rate_of, rate_name = _rate(lr)
    momentum = _below_1("momentum", momentum)
    weight_decay = _at_least_0("weight_decay", weight_decay)
    nesterov = check_bool("nesterov", nesterov)
    if nesterov and not momentum:
        raise UsageError("nesterov needs a momentum above 0; give one, such as momentum=0.9")

    def rule(p: Array, g: Array, *rest: Any) -> None:
        rate = float(rate_of(rest[-1]))
        if weight_decay:
            g = g + weight_decay * p
        if momentum:
            v = rest[0]
            v *= momentum
            v += g
            g = g + momentum * v if nesterov else v
        p -= rate * g

    name = f"sgd(lr={rate_name}, {momentum=}, {nesterov=}, {weight_decay=})"
    return Update(name, {"velocity": None} if momentum else {}, rule)


def adam(
    lr: Rate = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Update:
    """Return Adam, or AdamW if there is a weight decay. Local.

    This is algorithm 1 of Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization". The weight decay is that of
    Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization": before the step, the parameter is multiplied by
    ``1 - lr * weight_decay``, and the moments do not see it. The state is ``"m"`` and ``"v"``.

    Parameters
    ----------
    lr : float or callable
        The learning rate, or a function that returns it for the number of a step, from 1.
    betas : (float, float)
        Decay rates of the first and the second moment, at least 0 and below 1.
    eps : float
        Added to the root of the second moment. Above 0.
    weight_decay : float
        At least 0.

    Raises
    ------
    UsageError
        If a number does not fit.
    """
    rate_of, rate_name = _rate(lr)
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise UsageError(f"betas is {betas!r}; give two numbers")
    first, second = betas = _below_1("a beta", betas[0]), _below_1("a beta", betas[1])
    eps = check_number("eps", eps, lambda x: x > 0, "above 0")
    weight_decay = _at_least_0("weight_decay", weight_decay)

    def rule(p: Array, g: Array, m: Array, v: Array, step: int) -> None:
        rate = float(rate_of(step))
        m *= first
        m += (1 - first) * g
        v *= second
        v += (1 - second) * (g * g)
        if weight_decay:
            p *= 1 - rate * weight_decay
        # This is sqrt(v / (1 - second**t)), with the division outside of the root.
        root = np.sqrt(v)
        root *= 1 / sqrt(1 - second**step)
        root += eps
        p -= (rate / (1 - first**step)) * (m / root)

    name = f"adam(lr={rate_name}, {betas=}, {eps=}, {weight_decay=})"
    return Update(name, {"m": None, "v": None}, rule)


def name_of(function: object) -> str:
    """Return the name by which ranks compare a function."""
    return str(getattr(function, "__qualname__", type(function).__name__))


def _rate(lr: Rate) -> tuple[Callable[[int], float], str]:
    """Return a learning rate as a function, and the name by which ranks compare it."""
    if callable(lr):
        return lr, name_of(lr)
    rate = _at_least_0("lr", lr)
    return lambda _: rate, repr(rate)


def _at_least_0(name: str, value: object) -> float:
    return check_number(name, value, lambda x: x >= 0, "of at least 0")


def _below_1(name: str, value: object) -> float:
    return check_number(name, value, lambda x: 0 <= x < 1, "of at least 0 and below 1")
