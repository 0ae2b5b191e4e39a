"""What a rank gives to a call and what it must get, by the conformance suite's oracle, as flat arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.testing.conformance.collectives import BLOCKWISE
from hpccomm.testing.conformance.oracle import RankView, Spec, everyone


def views(size: int, collective: str, count: int | Sequence[int], **more: Any) -> list[RankView]:
    """Return each rank's part in a call; `count` is of a block where there are such, else of the array."""
    rows = count if isinstance(count, int) else tuple(count)
    spec = Spec(collective, rows, root=more.pop("root", size - 1), graph=everyone, **more)
    return [RankView(spec, rank, size) for rank in range(size)]


def signature(part: RankView, **more: Any) -> Signature:
    """Return what the backend is asked for."""
    spec, meaning, name = part.spec, part.meaning, part.spec.collective
    exchanged = name in ("all_to_all", "neighbor_all_to_all")
    counts = part.sent(part.rank) if exchanged else part.counts
    return Signature(
        name,
        spec.dtype,
        tuple(counts) if exchanged or name in BLOCKWISE else counts[:1],
        tuple(map(len, part.arriving())) if exchanged else (),
        tuple(part.peers(part.rank)) if name == "neighbor_all_to_all" else (),  # type: ignore[arg-type]
        uniform=not spec.uneven,
        op=spec.op if meaning.reduces else None,
        root=spec.root if meaning.root_gives or meaning.root_gets else -1,
        **more,
    )


def arrays(part: RankView) -> tuple[Any, Any]:
    """Return what a rank sends, and what it is to receive; None where there is no such array."""
    given, wanted = part.given(), part.wanted()
    return (
        *(
            None if each is None else np.ascontiguousarray(each).reshape(-1)
            for each in (given, wanted)
        ),
    )
