"""The results of calls, as c10d expects them: work objects and futures."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Lock
from typing import Any

import torch
from torch._C._distributed_c10d import Work as TorchWork
from torch.distributed import DistBackendError
from torch.futures import Future

from hpccomm.errors import BufferMismatch, CollectiveTimeout, CommunicationError
from hpccomm.runtime.service import after_fork
from hpccomm.torch.registration import untraced
from hpccomm.torch.tensors import Settle, seconds

_threads: ThreadPoolExecutor
"""Complete futures. A callback of one may wait for another, so there is a thread for each open one."""


@after_fork
def _begin() -> None:
    """Give this process its threads: a forked child lacks its parent's."""
    global _threads
    _threads = ThreadPoolExecutor(max_workers=256, thread_name_prefix="hpccomm-torch")


_begin()


@untraced
def _complete(future: Any) -> None:
    try:
        _threads.submit(future.set_result, None)
    except RuntimeError:  # Python ends, and starts no more threads
        future.set_result(None)


BETWEEN_RANKS = CommunicationError, BufferMismatch
"""Errors of a wait that other ranks cause, such as a message that does not fit."""


def as_torchs(error: BaseException) -> BaseException:
    """Return an error as c10d's users catch it: an error between ranks is a `DistBackendError`."""
    if not isinstance(error, BETWEEN_RANKS):
        return error
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, CollectiveTimeout):  # those who look for words look for NCCL's and Gloo's
        waited = f"{1e3 * error.deadline:.0f}ms " if error.deadline else ""
        text += f" [it timed out: Timed out waiting {waited}for {error.operation}]"
    raised: BaseException = DistBackendError(text)
    raised.__cause__ = error
    return raised


class TorchsErrors:
    """Raises errors of a block as c10d's users catch them: `torch.distributed.DistBackendError`.

    Parameters
    ----------
    *kinds : type
        Their classes.
    """

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, self._kinds):
            raise as_torchs(error) from error


BEGINNING, WAITING = TorchsErrors(CommunicationError), TorchsErrors(*BETWEEN_RANKS)
"""For the beginning of calls, when a tensor that does not fit is an error of an argument; and for the wait."""


@untraced
class CompletedWork(TorchWork):  # type: ignore[misc]  # PyTorch brings no types
    """A call that is done. One serves all synchronous calls."""

    def __init__(self, result: Sequence[Any] = ()) -> None:
        super().__init__()
        self._result = list(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True

    def get_future(self) -> Any:
        """Return a completed future of the list of tensors."""
        future: Any = Future()
        future.set_result(self._result)
        return future

    def synchronize(self) -> None:
        """Do nothing."""

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> BaseException | None:
        """Return None."""
        return None

    def result(self) -> list[Any]:
        """Return the tensors."""
        return self._result


@untraced
class PendingWork(CompletedWork):
    """A call under way, which keeps its tensors alive.

    Parameters
    ----------
    work : hpccomm.Work
        The call.
    result : sequence of torch.Tensor
        The tensors that c10d passed to be filled.
    settles : sequence of callable
        Copy results to where they belong.
    progresses : bool
        Whether the call goes on while nobody waits for it.
    """

    def __init__(
        self, work: Any, result: Sequence[Any], settles: Sequence[Settle], *, progresses: bool
    ) -> None:
        super().__init__(result)
        self._work, self._settles, self._progresses = work, list(settles), progresses
        self._lock = Lock()
        self._future: Any = None
        self._copied: Any = None  # on a device, when the results are where they belong

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is done; on a device, order the current stream behind it.

        Raises
        ------
        torch.distributed.DistBackendError
            If the call failed, or its deadline has passed; or `timeout` has, and the call goes on.
        """
        with WAITING:
            self._work.wait(seconds(timeout))
        self._settle()
        return True

    def _settle(self) -> None:
        with self._lock:  # also where nothing is left: another thread may be at the last copy
            if not self._settles and self._copied is None:
                return
            device = self._device()
            if self._copied is not None:  # maybe on another stream
                torch.cuda.current_stream(device).wait_event(self._copied)
            while self._settles:
                self._settles.pop(0)()
            if device is not None:
                self._copied = torch.cuda.current_stream(device).record_event()

    def synchronize(self) -> None:
        """Wait as `wait` does."""
        self.wait()

    def get_future(self) -> Any:
        """Return a future of the list of tensors; its ``wait`` raises what ended the call."""
        if self._future is None:
            self._future = self._made_future()
        return self._future

    def _made_future(self) -> Any:
        if self._work.progress is None:  # a device moves it on
            return self._device_future()
        if not self._progresses:
            self.wait()  # no thread would complete the future
            return super().get_future()
        device = self._device()
        base: Any = Future(devices=[] if device is None else [device])
        # A future that is given an exception is taken for a completed one by C++, which crashes on it. What
        # a callback raises is an error there.
        future = base.then(lambda _: self.wait() and self._result)
        self._work.add_done_callback(lambda: _complete(base))
        return future

    def _device_future(self) -> Any:
        """Return a completed future, whose waiters' streams are ordered behind the call."""
        device = self._device()
        future: Any = Future(devices=[device])
        with torch.cuda.stream(torch.cuda.Stream(device)):
            self.wait()
            future.set_result(self._result)
        return future

    def _device(self) -> Any:
        """Return where the results are; None for the host's memory."""
        # A list of tensors, or of lists of them; empty, or None, where c10d wants none back, as off the root of gather.
        for each in self._result:
            for part in each if isinstance(each, list) else [each]:
                if part is not None:
                    return part.device if part.is_cuda else None
        on_stream = self._work.progress is None
        return torch.device("cuda", torch.cuda.current_device()) if on_stream else None

    def is_completed(self) -> bool:
        """Return whether the call has ended, with or without an error. The current stream may use its result then."""
        done: bool = self._work.done()
        if done and self._work.exception() is None:
            self._settle()
        return done

    def is_success(self) -> bool:
        """Return whether the call has ended without an error."""
        return self.is_completed() and self._work.exception() is None

    def exception(self) -> BaseException | None:
        """Return what ended the call, if anything did so far."""
        error = self._work.exception()
        return None if error is None else as_torchs(error)


@untraced
class ReceiveWork(PendingWork):
    """A receive from any rank."""

    def source_rank(self) -> int:
        """Return who sent it, when it is there."""
        self.wait()
        return int(self._work.wait().src)

    _source_rank = source_rank
