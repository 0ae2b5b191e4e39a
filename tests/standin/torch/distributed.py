"""c10d as far as a backend in Python meets it: its registry, and a default group."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

group = SimpleNamespace(WORLD=None)
_handlers: dict[str, Callable[..., Any]] = {}


class DistBackendError(RuntimeError):
    """What goes wrong between ranks."""


class DistStoreError(RuntimeError):
    """What goes wrong in a store."""


class GradBucket:
    """Gradients of DistributedDataParallel."""


class Store:
    """Where ranks find each other."""


class HashStore(Store):
    """That of one process."""


class Backend:
    """The backends that are registered, by name."""

    backend_list: dict[str, Callable[..., Any]] = {}  # noqa: RUF012 (PyTorch's is a list of the class)

    @classmethod
    def register_backend(cls, name, create, **_):
        cls.backend_list[name] = create


def is_available():
    return True


def register_rendezvous_handler(scheme, handler):
    _handlers[scheme] = handler


def init_process_group(backend, init_method, timeout=None, device_id=None):
    """Make the default group, as PyTorch 2.13's distributed_c10d.py: a handler is not told of `device_id`."""
    store, rank, size = next(_handlers[urlsplit(init_method).scheme](init_method, timeout=timeout))
    options = SimpleNamespace(
        store=store, group_rank=rank, group_size=size, timeout=timeout, group_id="0",
        global_ranks_in_group=[],
    )  # fmt: skip
    group.WORLD = Backend.backend_list[backend](options, None)
