"""The facts of the ranks before NCCL is called: which ranks cannot take part, and what to do."""

import os
import threading
from collections import deque
from functools import partial

import pytest

from hpccomm.backends.nccl import libnccl, variables
from hpccomm.backends.nccl.facts import Facts, mine, shared_gpus, unfit, unpacked, version_text
from hpccomm.errors import CollectiveTimeout


def pinned(value):
    """Hold the variable at a value."""

    return variables.pinned(value, partial(deque, maxlen=0))  # which takes one step after the other


SEVERAL = variables.SEVERAL_RANKS_A_GPU


def ranks(n, *changes, **common):
    """Return the facts of `n` sound ranks on one host with a GPU each; `changes` are of the first of them."""
    sound = {"host": "node1", "visible": n, "name": "H100", "capability": 90, "nccl": 23203}
    changes = [*changes, *[{}] * (n - len(changes))]
    return [
        Facts(**{"rank": rank, "device": rank, "uuid": f"GPU-{rank}", **sound, **common, **own})
        for rank, own in enumerate(changes)
    ]


ALLOWED = {"variables": {SEVERAL: "1"}}
ONE_GPU = {"uuid": "GPU-0", "device": 0, "visible": 1}
INSTANCES = {"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "pci": "0000:01:00.0"}
LACKING = {"host": "node2", "why_not": "CuPy is not installed; install it"}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (ranks(4), []),
        # Each rank may call a GPU by another number, and two hosts have the same addresses.
        (
            ranks(4, {}, {}, {"uuid": "GPU-1", "device": 0}),
            ["ranks 1 and 2 have the same GPU (H100 GPU-1", f"{SEVERAL}=1", "NCCL_HOSTID"],
        ),
        (ranks(2, {"host": "node0"}, {"host": "node1"}, pci="0000:01:00.0"), []),
        # NCCL 2.28 init.cc:904 compares addresses; 2.30 init.cc:1052 UUIDs.
        (ranks(2, **INSTANCES), []),
        (
            ranks(2, **INSTANCES, nccl=22809),
            ["ranks 0 and 1 have instances (MIG) of the same GPU", "which NCCL 2.30 and later"],
        ),
        # Several ranks may have one from 2.30 on, if all say so.
        (ranks(2, **ONE_GPU), ["at most as many ranks on a host as it has GPUs"]),
        (ranks(2, **ONE_GPU, variables={SEVERAL: "0"}), ["at most as many ranks"]),
        (ranks(2, **ONE_GPU, **ALLOWED), []),
        (ranks(2, **ONE_GPU, **ALLOWED, nccl=22907), ["install NCCL 2.30"]),
        (ranks(2, ALLOWED, **ONE_GPU), [SEVERAL]),
        # And so may ranks with different host ids.
        (ranks(2, {"host_id": "a"}, {"host_id": "b"}, **ONE_GPU, nccl=21903), []),
        (ranks(2, {"host_id": "a"}, **ONE_GPU, nccl=21903), []),
        (ranks(2, **ONE_GPU, host_id="a", nccl=21903), ["the same GPU"]),
        # Each rank picks an algorithm by itself; two that differ wait for each other for ever.
        (ranks(3, variables={"NCCL_P2P_LEVEL": "PHB"}), []),
        (
            ranks(3, {}, {"variables": {}}, variables={"NCCL_P2P_LEVEL": "PHB"}),
            ["NCCL_P2P_LEVEL differs between the ranks (PHB on ranks 0 and 2, not set on rank 1)"],
        ),
        (ranks(2, {"nccl": 23202}), ["different versions of NCCL"]),
        (ranks(4, {}, LACKING, LACKING), [f"ranks 1 and 2 (node2): {LACKING['why_not']}"]),
    ],
)
def test_trap_which_ranks_do_not_fit_is_told_before_nccl_is_called(facts, words):
    why = unfit(facts)
    assert bool(why) == bool(words), why
    assert all(each in why for each in words), why


def test_facts_survive_the_way_to_other_ranks_and_versions_have_names():
    (told,) = ranks(1, functions=("ncclMemAlloc",), variables={"NCCL_ALGO": "x"}, why_not="é")
    assert unpacked(told.packed()) == told
    assert [version_text(code) for code in (23203, 2708, 0)] == ["2.32.3", "2.7.8", "none"]


def test_more_ranks_on_a_gpu_than_fit_are_warned_of():
    shared = ranks(3, uuid="GPU-0", **ALLOWED)
    assert unfit(shared) == ""
    assert "ranks 0-2 share a GPU" in shared_gpus(shared)
    fewer = {"variables": {SEVERAL: "1", variables.MAX_CTAS: "2"}}
    assert shared_gpus(ranks(3, uuid="GPU-0", **fewer)) == ""
    assert shared_gpus(shared[:2]) == ""


def test_a_missing_library_is_told_with_what_to_install(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(libnccl, "functions", lambda: None)  # found once a process
        assert "pip install nvidia-nccl-cu12" in mine(0, 0).why_not
    assert mine(0, 0).why_not == ""
    assert "device 99 or NCCL does not answer" in mine(0, 99).why_not  # cudaErrorInvalidDevice


def test_threads_that_pin_alike_do_so_at_once_and_others_wait(monkeypatch):
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    both = threading.Barrier(2, timeout=60)
    seen = []

    def ring():
        with pinned("Ring"):
            both.wait()  # passes only if both are in the block at once
            seen.append(os.environ.get("NCCL_ALGO"))

    def native():
        with pinned(None):
            seen.append(os.environ.get("NCCL_ALGO"))

    with pinned("Ring"):
        threads = [threading.Thread(target=each) for each in (ring, ring, native)]
        for thread in threads:
            thread.start()
        threads[2].join(0.1)
        assert threads[2].is_alive()
    for thread in threads:
        thread.join(60)
    assert seen == ["Ring", "Ring", None]
    assert "NCCL_ALGO" not in os.environ


def test_a_thread_that_waits_no_longer_holds_nothing_back(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Tree")

    def expire(steps):
        assert next(steps) is False
        raise CollectiveTimeout("")

    with pinned("Ring"):
        with pytest.raises(CollectiveTimeout), variables.pinned(None, expire):
            pass
        assert os.environ["NCCL_ALGO"] == "Ring"
    assert os.environ["NCCL_ALGO"] == "Tree"


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """What writes NCCL's file of the user. NCCL reads it once, into C's environment."""
    file = tmp_path / "nccl.conf"
    monkeypatch.setenv("NCCL_CONF_FILE", str(file))
    names = ["NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_TREE_THRESHOLD", "NCCL_DEBUG"]
    names += [variables.LAUNCH_ORDER, variables.GRAPH_REGISTER]
    for name in names:
        monkeypatch.delenv(name, raising=False)
    yield lambda text: file.write_text(f"# of the site\n{text}\n")
    for name in names:
        os.unsetenv(name)


@pytest.mark.standin
@pytest.mark.parametrize("read", [False, True])
def test_trap_what_nccls_file_says_is_seen_and_outlives_a_pin(conf, read, monkeypatch):
    """Which Python's os.environ does not show (NCCL 2.30, misc/param.cc: setEnvFile)."""
    from standin import control

    conf(
        "NCCL_ALGO=Tree,Ring\nNCCL_PROTO=Simple\nNCCL_LAUNCH_ORDER_IMPLICIT=0\nNCCL_P2P_DISABLE=1\n"
        "NCCL_TREE_THRESHOLD=0\nNCCL_DEBUG=WARN\nNCCL_GRAPH_REGISTER=1"
    )
    control.forget_nccl()
    if read:
        assert control.nccl_env("NCCL_ALGO") == "Tree,Ring"
    equal = {"NCCL_ALGO": "Tree,Ring", "NCCL_PROTO": "Simple", "NCCL_P2P_DISABLE": "1"}
    equal[variables.GRAPH_REGISTER] = "1"
    assert variables.equal_on_all() == equal  # and not what may differ, or what NCCL reads no more
    variables.order_launches(23203)
    variables.register_no_captured_arrays()  # by default each rank decides by itself (enqueue.cc:283)
    with pinned("Ring"):
        assert control.nccl_env("NCCL_ALGO") == "Ring"
        assert variables.algo() == "Tree,Ring"
    assert variables.algo() == control.nccl_env("NCCL_ALGO") == "Tree,Ring"
    assert control.nccl_env(variables.LAUNCH_ORDER) == "0"
    assert control.nccl_env(variables.GRAPH_REGISTER) == "1"
    assert "NCCL_ALGO" not in os.environ
    monkeypatch.setenv("NCCL_PROTO", "LL")  # the environment goes before the file
    assert variables.equal_on_all()["NCCL_PROTO"] == "LL"
