"""The command line: what each verb answers to misuse, and what the help says and loads."""

import re
import shlex
from pathlib import Path

import pytest
from alone import python
from damage import called

LINES = Path(__file__).with_name("misuse.txt").read_text("utf-8").splitlines()
CASES = [line.partition(" | ")[::2] for line in LINES if " | " in line]


@pytest.mark.parametrize(("command", "said"), CASES, ids=lambda text: text[:60])
def test_misuse_is_one_line_and_status_2(command, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPCCOMM_BACKEND", "loopback")
    monkeypatch.setenv("HPCCOMM_RECORDING", "")  # record sets it, for what it becomes
    status, out, err = called(*shlex.split(command))
    assert (status, out) == (2, "")
    begun = r"(hpccomm: recording to t\.h5 .*\n)?"  # a program that cannot be started is tried
    assert re.fullmatch(begun + r"hpccomm: error: .*\n", err)
    assert said in err
    assert not list(tmp_path.iterdir())


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


LIGHT = """
import sys
from hpccomm.tools.main import main
assert main("simulate all_reduce --cluster lab1g -b 8 -e 8".split()) == 0
try:
    main(["perf", "--help"])
except SystemExit:
    pass
print([name for name in ("mpi4py", "h5py", "cupy", "vl_convert") if name in sys.modules])
"""


def test_help_and_simulations_load_neither_mpi_nor_hdf5():
    assert python("-c", LIGHT, check=True).stdout.endswith("[]\n")
