"""NVIDIA's ranges, as ``cupy.cuda.nvtx``: what a profiler would show, by thread."""

import threading

_of_thread = threading.local()
shown: list[tuple[str, str]] = []


def _ranges() -> list[str]:
    if not hasattr(_of_thread, "open"):
        _of_thread.open = []
    return _of_thread.open


def RangePush(message: str, id_color: int = -1) -> None:
    _ranges().append(message)


def RangePop() -> None:
    shown.append(("range", _ranges().pop()))


def Mark(message: str, id_color: int = -1) -> None:
    shown.append(("mark", message))
