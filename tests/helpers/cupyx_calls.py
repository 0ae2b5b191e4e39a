"""Every call of ``cupyx.distributed``, on arrays of NumPy or CuPy, against NumPy's results."""

from typing import Any

import numpy as np

from hpccomm.cupyx import NCCLBackend


def check_all(backend: NCCLBackend, xp: Any) -> None:
    """Make each call, and compare. On all ranks."""
    n, rank = backend.comm.size, backend.rank
    whole = [np.random.default_rng(r).integers(1, 5, (n, 2, 3)).astype("f") for r in range(n)]
    total, root = sum(whole), n - 1
    given, turned = xp.asarray(whole[rank]), xp.asarray(np.ascontiguousarray(whole[rank].T)).T
    every = np.stack(whole)

    def same(found: Any, wanted: Any) -> None:
        np.testing.assert_array_equal(getattr(found, "get", lambda: found)(), wanted)

    def empty(*shape: int) -> Any:
        return xp.full(shape, -1, dtype="f")

    def gives(name: str, x: Any, out: Any, *more: Any, wanted: Any, at: int | None = None) -> None:
        """Check what a call writes; on other ranks than `at` it leaves the array as it is."""
        untouched = out.copy()
        getattr(backend, name)(x, out, *more)
        same(out, wanted if at in (None, rank) else getattr(untouched, "get", untouched.copy)())

    for op, wanted in (
        ("sum", total),
        ("max", every.max(0)),
        ("min", every.min(0)),
        ("prod", every.prod(0)),
    ):
        gives("all_reduce", given, empty(n, 2, 3), op, wanted=wanted)
        gives("reduce", given, empty(n, 2, 3), root, op, wanted=wanted, at=root)
    same(given, whole[rank])
    in_place = given.copy()
    gives("all_reduce", in_place, in_place, wanted=total)
    # Column by column, as the memory lies.
    gives("all_reduce", turned, empty(3, 2, n).T, wanted=total)
    gives("all_reduce", turned, empty(6 * n), wanted=total.T.ravel())
    out = given.copy()
    backend.broadcast(out, root)
    same(out, whole[root])
    # The first 2 n elements of 6 n.
    part = every.max(0).ravel()[2 * rank : 2 * rank + 2]
    gives("reduce_scatter", given, empty(5), 2, "max", wanted=[*part, -1, -1, -1])
    firsts = np.pad(every.reshape(n, -1)[:, :4].ravel(), (0, n), constant_values=-1)
    gives("all_gather", given, empty(n, 5), 4, wanted=firsts.reshape(n, 5))
    gives("scatter", given, empty(2, 3), root, wanted=whole[root][rank])
    gives("gather", given, empty(n, n, 2, 3), root, wanted=every, at=root)
    gives("all_to_all", given, empty(n, 2, 3), wanted=every[:, rank])
    if (other := rank ^ 1) < n:
        gives("send_recv", given, empty(n, 2, 3), other, wanted=whole[other])
        if rank < other:
            backend.send(given, other)
        else:
            out = empty(n, 2, 3)
            backend.recv(out, other)
            same(out, whole[other])
    backend.barrier()
