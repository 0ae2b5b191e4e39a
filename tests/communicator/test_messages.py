"""A message of another size is lost, and nothing else."""

import re
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

import numpy as np
import pytest
from ranked import on_threads
from until import until

from hpccomm import ANY, CollectiveTimeout, RankMismatch, UsageError
from hpccomm.errors import BufferMismatch, CommunicationError
from hpccomm.testing import run_ranks


def receive_both(comm, first, second) -> None:
    with comm.batch():
        comm.recv(first, 1)
        comm.recv(second, 1)


@on_threads(2)
def test_a_mismatch_in_a_batch_or_in_send_recv_leaves_the_other_messages(comm) -> None:
    peer = 1 - comm.rank
    with pytest.raises(BufferMismatch, match=r"8 bytes.* sent it at .*leaves_the_other_messages"):
        comm.send_recv(np.ones(1), peer, np.zeros(2), peer)
    assert comm.send_recv(np.full(1, 5.0), peer, np.zeros(1), peer)[0] == 5.0
    if comm.rank == 1:
        for count in (2, 3, 4):
            comm.send(np.full(count, float(count)), 0)
        return
    first, second, third = np.zeros(3), np.zeros(3), np.zeros(4)
    with pytest.raises(BufferMismatch, match="16 bytes"):
        receive_both(comm, first, second)
    comm.recv(third, 1)
    assert (first.tolist(), second.tolist()) == ([0.0] * 3, [3.0] * 3)
    assert third.tolist() == [4.0] * 4


def test_a_message_of_another_dtype_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    # Those of other tests of this process may have the same code, and are then named by their kind.
    monkeypatch.setattr("hpccomm.contracts.transport._OWN", {})
    pairs = {
        "f8": ("i8", r"rank 1 sent dtype float64.*has dtype int64.*sends\(\)"),
        "M8[s]": ("i8", r"sent dates \(datetime64\), and the array has dtype int64"),
        "m8[ms]": ("M8[s]", r"sent time spans \(timedelta64\).*has dtype datetime64\[s\]"),
        "U2": ("m8[ms]", r"sent text \(str_\).*has dtype timedelta64\[ms\]"),
        "S8": ("U2", r"sent bytes \(bytes_\).*has dtype <U2"),
        "i4,f4": ("S8", r"sent a structured dtype.*has dtype \|S8"),
        "i8": ("i4,f4", r"sent dtype int64.*has dtype \[\('f0', '<i4'\), \('f1', '<f4'\)\]"),
    }

    def sends(comm) -> None:
        for sent, (taken, _) in pairs.items():
            comm.send(np.zeros(2, sent), 0)
            comm.send(np.zeros(2, taken), 0)

    def on_rank(comm) -> None:
        if comm.rank == 1:
            sends(comm)
            return
        for taken, says in pairs.values():
            out = np.zeros(2, taken)
            with pytest.raises(BufferMismatch, match=says):
                comm.recv(out, 1)
            comm.recv(out, 1)  # the next one is taken

    run_ranks(2, on_rank)


@pytest.mark.parametrize("verb", ["plan", "explain"])
@pytest.mark.parametrize(("known", "src", "tag"), [(True, ANY, 0), (True, 1, ANY), (False, 1, 0)])
@on_threads(2)
def test_an_unknown_message_is_neither_planned_nor_explained(comm, verb, known, src, tag) -> None:
    if comm.rank == 1:
        comm.send(np.arange(3.0), 0)
    out = np.zeros(3) if known else None
    if comm.rank == 0:
        with pytest.raises(UsageError, match="cannot be planned or explained; give out, src"):
            getattr(comm, verb)("recv", out, src, tag)
        assert comm.recv(None, 1).tolist() == [0.0, 1.0, 2.0]  # it was left
    elif verb == "plan":
        with pytest.raises(RankMismatch, match="cannot be planned or explained"):
            comm.plan("send", np.arange(3.0), 0)


@on_threads(1)
def test_a_rank_alone_has_no_sender_whatever_the_tag_or_waits_for_anybody(comm) -> None:
    out = np.arange(3.0)
    assert comm.recv(out, None, ANY) is out
    comm.plan("recv", out, None, ANY)()
    assert out.tolist() == [0.0, 1.0, 2.0]
    comm.set_timeout(0.4)
    with pytest.raises(CollectiveTimeout, match="recv"):
        comm.recv(None, ANY)


@on_threads(2)
def test_messages_that_nobody_receives_are_told(comm, caplog) -> None:
    said = "an object with tag 3"
    if comm.rank == 0:
        comm.recv(np.ones(2), 1, tag=3)  # which comes later
        with pytest.raises(RankMismatch, match=f"rank 1 has sent {said}, which no rank receives"):
            comm.recv(np.ones(2), 1, tag=3)
        return
    comm.send_object("so", 0, tag=3)
    until(lambda: said in caplog.text)  # while rank 0 waits
    comm.send(np.ones(2), 0, tag=3)
    with pytest.raises(RankMismatch, match="wait for each other"):
        comm.barrier()


class Interrupting:
    """Ctrl-C comes while it is pickled."""

    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


class Wordless:
    """Its error cannot be sent as UTF-8."""

    def __reduce__(self) -> Any:
        raise ValueError("\udcff")


def giving() -> Iterator[int]:
    yield 1
    raise ZeroDivisionError("in the generator")


UNGIVEN: dict[str, tuple[type[BaseException], Callable[[Any], object], Callable[[Any], object]]] = {
    # What rank 0 raises and does, and what rank 1 does.
    "to whom it may concern": (UsageError, lambda c: c.send_object(Lock(), 1), lambda c: c.recv_object(ANY)),
    "interrupted": (
        KeyboardInterrupt, lambda c: c.send_object(Interrupting(), 1, tag=3), lambda c: c.recv_object(0, tag=3),
    ),
    "no text": (UsageError, lambda c: c.broadcast_object(Wordless()), lambda c: c.broadcast_object(None)),
    "a generator": (ZeroDivisionError, lambda c: c.scatter_object(giving()), lambda c: c.scatter_object(None)),
}  # fmt: skip


@on_threads(2)
def test_who_waits_for_an_object_hears_that_there_is_none(comm: Any) -> None:
    for kind, (raises, gives, takes) in UNGIVEN.items():
        if comm.rank == 0:
            with pytest.raises(raises):
                gives(comm)
            comm.send_object(kind, 1)
        else:
            with pytest.raises(CommunicationError, match="rank 0 could not"):
                takes(comm)
            assert comm.recv_object(0) == kind, "it takes the next one"


def leave_an_array(comm) -> None:
    if comm.rank == 2:
        comm.send(np.ones(10), 0, tag=7)


def leave_objects(comm) -> None:
    if comm.rank == 1:
        for number in range(3):
            comm.send_object(number, 2, tag=4)
    elif comm.rank == 2:
        assert comm.recv_object(1, tag=4) == 0


def leave_one_of_many_tags(comm) -> None:
    for tag in range(5):
        if comm.rank == 0:
            comm.send_recv(np.ones(2), 1, np.ones(1), None, tag)
        elif comm.rank == 1 and tag != 3:
            assert comm.recv(None, ANY, tag).size == 2


def leave_none(comm) -> None:
    comm.send(np.ones(2), (comm.rank + 1) % 3, tag=comm.rank)
    comm.probe().recv()
    plan = comm.plan("send_recv", np.ones(1), (comm.rank + 1) % 3, np.ones(1), (comm.rank - 1) % 3)
    plan()
    comm.send_object("to itself", comm.rank)
    comm.recv_object(ANY, ANY)


LEFT = {
    leave_an_array: r"rank 2 to rank 0 with tag 7: an array of 80 bytes, sent at .*py line \d+$",
    leave_objects: r"rank 1 to rank 2 with tag 4: an object of \d+ bytes, sent at .*; nor 1 more$",
    leave_one_of_many_tags: r"rank 0 to rank 1 with tag 3: an array of 16 bytes, sent at",
    leave_none: None,
}


@pytest.mark.parametrize("call", LEFT)
def test_messages_that_nobody_received_are_told_in_one_line_at_the_end(call: Any, caplog) -> None:
    def on_rank(comm) -> None:
        with comm.dup() as whole:
            call(whole)

    run_ranks(3, on_rank)
    told = [each.getMessage() for each in caplog.records if "unreceived" in each.getMessage()]
    assert len(told) == (LEFT[call] is not None)
    for each in told:
        assert "ends with unreceived messages: a message of" in each
        assert re.search(LEFT[call], each), told
