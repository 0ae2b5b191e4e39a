"""Every call of ``cupyx.distributed``, on arrays of NumPy or CuPy, against NumPy's results."""

from typing import Any

import numpy as np

from hpccomm.cupyx import NCCLBackend


def check_all(backend: NCCLBackend, xp: Any) -> None:
    """Make each call, and compare. On all ranks."""
    n, rank = backend.comm.size, backend.rank
    whole = [np.random.default_rng(r).integers(1, 5, (n, 2, 3)).astype("f") for r in range(n)]
    total, root = sum(whole), n - 1
    given = xp.asarray(whole[rank])
    every = np.stack(whole)

    def empty(*shape: int) -> Any:
        return xp.full(shape, -1, dtype="f")

    def same(found: Any, wanted: Any) -> None:
        np.testing.assert_array_equal(getattr(found, "get", lambda: found)(), wanted)

    for op, wanted in (
        ("sum", total),
        ("max", every.max(0)),
        ("min", every.min(0)),
        ("prod", every.prod(0)),
    ):
        out = empty(n, 2, 3)
        backend.all_reduce(given, out, op)
        same(out, wanted)
        out = empty(n, 2, 3)
        backend.reduce(given, out, root, op)
        same(out, wanted if rank == root else -np.ones((n, 2, 3)))
    same(given, whole[rank])
    in_place = given.copy()
    backend.all_reduce(in_place, in_place)
    same(in_place, total)
    # Column by column, as the memory lies.
    out = empty(3, 2, n).T
    backend.all_reduce(xp.asarray(np.ascontiguousarray(whole[rank].T)).T, out)
    same(out, total)
    out = empty(6 * n)
    backend.all_reduce(xp.asarray(np.ascontiguousarray(whole[rank].T)).T, out)
    same(out, total.T.ravel())
    out = given.copy()
    backend.broadcast(out, root)
    same(out, whole[root])
    # The first 2 n elements of 6 n.
    out = empty(5)
    backend.reduce_scatter(given, out, 2, "max")
    same(out, [*every.max(0).ravel()[2 * rank : 2 * rank + 2], -1, -1, -1])
    out = empty(n, 5)
    backend.all_gather(given, out, 4)
    same(out.reshape(-1)[: 4 * n], every.reshape(n, -1)[:, :4].ravel())
    out = empty(2, 3)
    backend.scatter(given, out, root)
    same(out, whole[root][rank])
    out = empty(n, n, 2, 3)
    backend.gather(given, out, root)
    same(out, every if rank == root else -np.ones((n, n, 2, 3)))
    out = empty(n, 2, 3)
    backend.all_to_all(given, out)
    same(out, every[:, rank])
    other = rank ^ 1
    if other < n:
        out = empty(n, 2, 3)
        backend.send_recv(given, out, other)
        same(out, whole[other])
        if rank < other:
            backend.send(given, other)
        else:
            out = empty(n, 2, 3)
            backend.recv(out, other)
            same(out, whole[other])
    backend.barrier()
