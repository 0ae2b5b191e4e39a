"""The outcome of a reduced step with missing, unwritten, NaN or infinite gradients, equal on all ranks.

`steps` applies it at the end of each step.
"""

from typing import Any

import numpy as np

from hpccomm.errors import RankMismatch, UsageError
from hpccomm.gradients.buckets import ELSEWHERE, IS_WRITTEN, MISSING, NONFINITE, UNCHANGED, Buckets
from hpccomm.gradients.group import RankGroup
from hpccomm.gradients.settings import ReductionSettings
from hpccomm.units import few, ranks_named

MOST = 5
"""Gradients that a message names."""


def is_skipped(group: RankGroup, buckets: Buckets, settings: ReductionSettings) -> bool:
    """Check a reduced step, and return whether it has no results because they are not finite.

    All ranks have the same flags, so that nothing is sent if all is well. Else collective; blocks.

    Raises
    ------
    UsageError
        On every rank, if gradients were not written; or if results are not finite, with ``nonfinite="raise"``.
    RankMismatch
        On every rank, if a gradient is missing, with ``unused="error"``.
    """
    flags = buckets.any_flags
    if flags[ELSEWHERE] or (flags[UNCHANGED] and not flags[IS_WRITTEN]):
        _raise_unwritten(group, buckets)
    if flags[MISSING]:
        if settings.unused == "zero":
            buckets.present = dict.fromkeys(buckets.present, True)
        else:
            _fill_missing(group, buckets, settings.unused == "error")
    if settings.nonfinite == "keep" and not settings.skips:
        return False
    bad = [
        name
        for flat in buckets.flats
        if not flat.is_finite()
        for name, view in flat.views.items()
        if not np.isfinite(view).all()
    ]
    if not bad and not flags[NONFINITE]:
        return False
    if settings.nonfinite == "raise":
        _raise_nonfinite(group, buckets, bad)
    return True


def _raise_unwritten(group: RankGroup, buckets: Buckets) -> None:
    """Raise for gradients in buckets: their sum would silently contain old results."""
    every = group.exchange(buckets.unwritten())
    buckets.accept([])
    names = list(dict.fromkeys(name for unwritten, _ in every for name in unwritten))
    ranks = [rank for rank, (unwritten, _) in enumerate(every) if unwritten]
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
    raise UsageError(
        "gradients that lie in buckets were not written since the last step: "
        f"{few(map(repr, names), MOST)} on {ranks_named(ranks)}; {cause}"
    )


def _fill_missing(group: RankGroup, buckets: Buckets, fail: bool) -> None:
    """Find the missing gradients of all ranks."""
    own = np.fromiter(buckets.present.values(), np.uint8, len(buckets.present))
    present: Any = group.gather(own).astype(bool)
    buckets.present = dict(zip(buckets.present, present.any(axis=0).tolist(), strict=True))
    if fail:
        missing = [
            f"{name!r} on {ranks_named(np.flatnonzero(~column).tolist())}"
            for name, column in zip(buckets.present, present.T, strict=True)
            if not column.all()
        ]
        raise RankMismatch(
            f"gradients are missing: {'; '.join(missing)}; give them, or take unused='zero' or 'skip'",
            rank=group.rank,
            operation="all_reduce",
            ranks=np.flatnonzero(~present.all(axis=1)).tolist(),
        )


def _raise_nonfinite(group: RankGroup, buckets: Buckets, bad: list[str]) -> None:
    every = group.exchange(sorted(buckets.nonfinite))
    lines = []
    for name in dict.fromkeys([*bad, *(name for names in every for name in names)]):
        ranks = [rank for rank, names in enumerate(every) if name in names]
        where = f"on {ranks_named(ranks)}" if ranks else "in the result alone"
        lines.append(f"{name!r} {where}")
    raise UsageError(
        f"gradients are NaN or infinite: {'; '.join(lines)}; nonfinite='skip' leaves such steps out"
    )
