"""What becomes of a step in which gradients are missing, not written or not finite. All ranks decide alike."""

from typing import TYPE_CHECKING

import numpy as np

from hpccomm.errors import RankMismatch, UsageError
from hpccomm.gradients.meaning import Nonfinite, Unused
from hpccomm.gradients.step import Step
from hpccomm.units import few, ranks_named

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

MOST = 5
"""Gradients that a message names."""


def settle_written(comm: "Communicator", step: Step, timeout: float | None) -> None:
    """Find out which gradients lie in buckets, but were not written since the last results. Collective then; blocks.

    Their sum would be that of old results, and nothing would show it. All ranks have the same flags, so that nothing is
    sent in other steps.

    Raises
    ------
    UsageError
        On every rank, if there are such gradients. The message has their names, the cause and what to do.
    """
    if not step.any_elsewhere and (step.any_written or not step.any_as_before):
        return
    every = comm.all_gather_object(step.unwritten(), timeout=timeout)
    step.results([])
    names = list(dict.fromkeys(name for found, _ in every for name in found))
    ranks = [rank for rank, (found, _) in enumerate(every) if found]
    if any(owned for _, owned in every):
        cause = (
            "zero_grad() and backward() made new tensors in .grad, which the step did not see and where no results "
            "arrive; give them, by sync({name: parameter.grad, ...}) or ready(name, parameter.grad)"
        )
    else:
        cause = (
            "they have the bits of the last results; write them in each step, or give arrays to sync() or ready(). "
            "zero() before a step says that equal ones are meant"
        )
    shown = few(map(repr, names), MOST)
    raise UsageError(
        f"gradients that lie in buckets were not written since the last step: {shown} on {ranks_named(ranks)}; {cause}"
    )


def settle_missing(comm: "Communicator", step: Step, unused: Unused, timeout: float | None) -> None:
    """Find out which gradients are missing where, after a step that is incomplete. Collective; blocks.

    Raises
    ------
    RankMismatch
        On every rank, if `unused` is ``"error"``.
    """
    if unused == "zero":
        step.there = dict.fromkeys(step.there, True)
        return
    mine = np.fromiter(step.there.values(), np.uint8, len(step.there))
    there = comm.all_gather(mine, timeout=timeout).astype(bool)
    step.there = dict(zip(step.there, map(bool, there.any(axis=0)), strict=True))
    if unused == "error":
        lacking = [
            f"{name!r} on {ranks_named([int(rank) for rank in np.flatnonzero(~column)])}"
            for name, column in zip(step.there, there.T, strict=True)
            if not column.all()
        ]
        raise RankMismatch(
            f"gradients are missing: {'; '.join(lacking)}; give them, or take unused='zero' or 'skip'",
            rank=comm.rank,
            operation="all_reduce",
            ranks=[int(rank) for rank in np.flatnonzero(~there.all(axis=1))],
        )


def settle_nonfinite(
    comm: "Communicator", step: Step, nonfinite: Nonfinite, timeout: float | None
) -> bool:
    """Return whether to skip a step that was reduced: an element of its results is NaN or infinite.

    All ranks have the same results and flags, so that nothing is sent if they are finite. Else collective; blocks.

    Raises
    ------
    UsageError
        On every rank, if `nonfinite` is ``"raise"``.
    """
    odd = [flat for flat in step.flats if not flat.finite()]
    bad = [
        each.name
        for flat in odd
        for each, view in zip(flat.bucket.parameters, flat.views, strict=True)
        if not np.isfinite(view).all()
    ]
    if not bad and not step.any_nonfinite:
        return False
    if nonfinite == "raise":
        own = comm.all_gather_object(sorted(step.nonfinite), timeout=timeout)
        names = dict.fromkeys([*bad, *(name for names in own for name in names)])
        where = {name: [rank for rank, names in enumerate(own) if name in names] for name in names}
        found = [
            f"{name!r} on {ranks_named(ranks)}" if ranks else f"{name!r} in the result alone"
            for name, ranks in where.items()
        ]
        raise UsageError(
            f"gradients are NaN or infinite: {'; '.join(found)}; nonfinite='skip' leaves such steps out"
        )
    return True
