"""One call of any collective: its arguments, and the contents of its arrays before and after.

Cases make a trial, and check it against the oracle.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import hpccomm
from hpccomm import ReduceOp
from hpccomm.communicator import Communicator
from hpccomm.testing.conformance.case import Array, equal, same_bits
from hpccomm.testing.conformance.inputs import poison, tolerance
from hpccomm.testing.conformance.oracle import FLAT, IN_PLACE, NEW, RankView, Spec

Place = Callable[[str, int, np.dtype[Any]], Array]
"""Gives the memory of a call's array: its name (``"x"`` or ``"out"``), elements and dtype."""

FORMS = ("call", "asynchronous", "plan")
"""Ways to make a call."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A call on one rank.

    Attributes
    ----------
    part : RankView
        This rank's part in the call.
    arguments : mapping
        Keyword arguments of the call, arrays among them.
    target : ndarray or None
        The argument that the call writes and returns, if any.
    """

    part: RankView
    arguments: Mapping[str, Any]
    target: Array | None

    def run(self, comm: Communicator, form: str = "call", **how: Any) -> None:
        """Make the call and check its arrays and its result; collective over `comm`.

        Parameters
        ----------
        comm : Communicator
            The trial's communicator.
        form : str
            One of `FORMS`. A plan is called twice, with other values.
        **how
            More keyword arguments of the call. Deterministic results must be equal bit by bit.
        """
        spec = self.part.spec
        call: Callable[..., Any] = getattr(comm, spec.call)
        what = f"{spec.op} of {spec.dtype}, {spec}, {form}, {how}"
        calls: list[Callable[[], Any]] = [lambda: call(**self.arguments, **how)]
        if form == "asynchronous":
            calls = [lambda: call(**self.arguments, **how, async_op=True).wait()]
        elif form == "plan":
            calls = [comm.plan(spec.call, **self.arguments, **how)] * 2
        for seed, make in enumerate(calls):
            self.fill(seed)
            self.check(make(), what, exact="deterministic" in how, seed=seed)
            for array in (
                self.arguments["x"],
                self.target,
            ):  # the caller's again: nothing is sent from it
                if array is not None:
                    array[...] = poison(array)

    def fill(self, seed: int = 0) -> None:
        """Fill the arrays with their contents before the call; another seed has other values."""
        part = replace(self.part, seed=seed)
        given, wanted = part.given(), part.wanted()
        if self.target is not None:
            assert wanted is not None
            self.target[...] = poison(wanted, self.target.shape)
        if given is not None:
            self.arguments["x"][...] = given

    def check(self, outcome: Any, what: str, *, exact: bool = False, seed: int = 0) -> None:
        """Look at what a call returned that was made after `fill`, and at its arrays."""
        part, x, target = replace(self.part, seed=seed), self.arguments["x"], self.target
        given, wanted = part.given(), part.wanted()
        if wanted is None:
            assert outcome is None, f"{what}: {outcome!r} instead of None"
        else:
            if part.spec.collective == "neighbor_all_to_all":
                nobody, before = part.from_nobody(), given if target is x else poison(wanted)
                assert before is not None
                wanted = wanted.copy()
                wanted[nobody] = 0 if target is None else before[nobody]
            if target is not None:
                assert outcome is target, f"{what}: the result is not the array that was given"
                outcome = target.reshape(wanted.shape)
            if exact:
                same_bits(outcome, wanted, what)
            else:
                op = part.spec.op
                size = part.size
                rtol = tolerance(op, part.spec.dtype, size) if isinstance(op, ReduceOp) else 0.0
                equal(outcome, wanted, what, rtol=rtol)
        if given is not None and x is not target:
            stays = given.copy()
            if target is not None and stays.size > target.size and np.may_share_memory(x, target):
                stays.reshape(-1)[part.own()] = target.reshape(-1)
            equal(x, stays, f"{what}, x")


def anywhere(_name: str, count: int, dtype: np.dtype[Any]) -> Array:
    """Return memory of NumPy's."""
    return np.empty(count, dtype)


def trial(comm: Communicator, spec: Spec, place: Place = anywhere) -> Trial:
    """Return the trial of `spec` on this rank. Local.

    Parameters
    ----------
    comm : Communicator
        Gives rank and size.
    ask : Spec
        Equal on all ranks.
    place : callable
        Gives the arrays' memory; ranks may differ in it.
    """
    part = RankView(spec, comm.rank, comm.size)
    given, wanted, meaning = part.given(), part.wanted(), part.meaning
    result = spec.results[comm.rank % len(spec.results)]
    arguments = part.arguments()

    def array(name: str, like: Array) -> Array:
        return place(name, like.size, like.dtype).reshape(like.shape)

    x: Array | None = None
    out: Array | None = None
    if not meaning.takes_out:
        assert wanted is not None
        x = array("x", wanted)
        return Trial(part, {"x": x, **arguments}, x)
    if given is not None and wanted is not None and result == IN_PLACE:
        x, out = overlapping(part, given, wanted, array)
        return Trial(part, {"x": x, "out": out, **arguments}, out)
    if given is not None:
        x = array("x", given)
        if wanted is not None and result == NEW and not meaning.makes:
            return Trial(part, {"x": x, **arguments}, x)
    if wanted is not None and (given is None or result != NEW):
        out = array("out", wanted.reshape(-1) if result == FLAT else wanted)
    return Trial(part, {"x": x, "out": out, **arguments}, out)


def overlapping(
    part: RankView, given: Array, wanted: Array, array: Callable[[str, Array], Array]
) -> tuple[Array, Array]:
    """Return x and out as one array, or one as this rank's block of the other."""
    if given.shape == wanted.shape:
        x = array("x", given)
        return x, x
    if given.size > wanted.size:
        x = array("x", given)
        return x, x.reshape(-1)[part.own()].reshape(wanted.shape)
    out = array("out", wanted)
    return out.reshape(-1)[part.own()].reshape(given.shape), out


def carry_out(comm: Communicator, spec: Spec, form: str = "call", **how: Any) -> None:
    """Make the call that is asked for, on arrays of NumPy's; collective over `comm`."""
    trial(comm, spec).run(comm, form, **how)


def another(comm: Communicator, **keywords: Any) -> Communicator:
    """Make a communicator like `comm`, from nothing; collective over it."""
    backend = str(comm.backends["host"])
    return hpccomm.new_comm(backend, **{"mpi_comm": comm.mpi_comm, **keywords})
