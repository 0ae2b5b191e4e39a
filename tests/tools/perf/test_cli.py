"""The command line: what it answers to misuse, and what it loads."""

import re
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
from alone import python
from damage import called

from ...conftest import launch_environment


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "VERB"),
        (["gauge"], "hpccomm has no verb 'gauge'; the verbs are perf, perf pairs, perf memory, "),
        (
            ["pref"],
            "hpccomm has no verb 'pref'; did you mean perf? The verbs are perf, perf pairs, perf memory, ",
        ),
        (
            ["--vresion"],
            "hpccomm has no flag --vresion; did you mean --version? Usage: hpccomm VERB",
        ),
        (["perf"], "COLLECTIVE"),
        (
            ["perf", "all_reduce,all_red"],
            "'all_red' is not a collective; did you mean all_reduce? Give all or",
        ),
        (
            ["perf", "all_reduce", "all_gather"],
            "'all_gather' is more than hpccomm perf takes; usage:",
        ),
        (
            ["perf", "--algoritm", "ring", "all_reduce"],
            "hpccomm perf has no flag --algoritm; did you mean --algorithm? Usage: hpccomm perf "
            "COLLECTIVE[,COLLECTIVE...] [FLAG ...] (hpccomm perf --help says more)",
        ),
        (["perf", "all_reduce", "-iters", "3"], "has no flag -iters; did you mean --iters? Usage:"),
        (["perf", "-q", "3", "all_reduce"], "hpccomm perf has no flag -q; usage: hpccomm perf"),
        (["perf", "AllReduce"], "'AllReduce' is not a collective; did you mean all_reduce? Give"),
        (
            ["perf", "all_reduce", "--algorithm", "rign"],
            "'rign' is not an algorithm; did you mean ring?",
        ),
        (
            ["perf", "all_reduce", "-d", "half,Flaot"],
            "'Flaot' is not a type; did you mean float? Give",
        ),
        (
            ["perf", "all_reduce", "-o", "sum,mix"],
            "'mix' is not a reduction; did you mean min? Give",
        ),
        (["perf", "all_reduce", "--backend", "lopback"], "'lopback'; did you mean loopback? Give"),
        (
            ["export", "x", "--format", "jsn"],
            "'jsn' is not a format; did you mean json? Give one of",
        ),
    ],
)
def test_misuse_is_one_line_and_status_2(arguments, said):
    status, out, err = called(*arguments)
    assert (status, out) == (2, "")
    assert re.fullmatch(r"hpccomm: error: .*\n", err)
    assert said in err


def test_under_a_launcher_rank_0_alone_speaks(monkeypatch):
    waited = []
    command = import_module("hpccomm.tools.main")
    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=waited.append))
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)  # it has not started

    def rank(number):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(number))
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
        return called("perf", "all_reduce", "--algoritm", "ring")

    assert rank(0)[2] != ""
    assert waited == []
    assert rank(3) == (2, "", "")
    assert waited == [command.SILENCE]  # the launcher ends the job at the first that leaves


EXAMPLE = "mpiexec -n 4 hpccomm perf all_reduce -b 8 -e 64M -f 2"


def test_help_says_what_can_be_given_and_what_is_by_default():
    assert EXAMPLE in called("--help")[1]
    status, out, _ = called("perf", "--help")
    assert status == 0
    for said in (
        EXAMPLE,
        "auto, mpi, loopback, nccl",
        "auto, native, binomial, bruck",
        "complex128; or all (default float)",
        "bxor; or all (default sum)",
        "repetitions (default 20)",
        "smallest size (default 32M)",
        "The exit status is 0 if everything is right, 1 if a result is wrong",
    ):
        assert said in " ".join(out.split())


def test_help_loads_neither_mpi_nor_hdf5():
    code = """
import sys
from hpccomm.tools.main import main
try:
    main(["perf", "--help"])
except SystemExit:
    pass
print([name for name in ("mpi4py", "h5py", "cupy") if name in sys.modules])
"""
    done = python("-c", code, env=launch_environment(), check=True)
    assert done.stdout.endswith("[]\n")
