"""A child of a rank has the rank's variables, but is not a rank: it gets an error.

The launchers set them for the process that they start: PMIX_RANK and PMI_RANK name one process of a job.
"""

from pathlib import Path

import pytest
from conftest import Mpiexec

PROGRAM = """
import multiprocessing, os, subprocess, sys
from concurrent.futures import ProcessPoolExecutor

def made(_=None):
    import hpccomm
    try:
        with hpccomm.new_comm(timeout=10) as comm:
            return f"rank {comm.rank} of {comm.size}"
    except hpccomm.HpccommError as error:
        return f"{type(error).__name__}: {error}"

def by_pool(method):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        return pool.submit(made, 0).result()

def by_subprocess(*before, **keywords):
    words = [*before, sys.executable, "-c", "import program; print(program.made())"]
    return subprocess.run(words, capture_output=True, text=True, check=True, **keywords).stdout

def by_exec():
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writer, 1)
        os.execv(sys.executable, [sys.executable, "-c", "import program; print(program.made())"])
    os.close(writer)
    os.waitpid(child, 0)
    return os.fdopen(reader).read()

def cleared():
    ours = ("OMPI_COMM_", "PMIX_", "PMI_", "MPI_LOCAL")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
"""


def run(mpiexec: Mpiexec, folder: Path, main: str) -> list[str]:
    (folder / "program.py").write_text(f"{PROGRAM}\nif __name__ == '__main__':\n{main}")
    job = mpiexec(2, str(folder / "program.py"), env={"PYTHONPATH": str(folder)})
    assert job.returncode == 0, job.stderr
    return [line for line in job.stdout.splitlines() if line.strip()]


@pytest.mark.slow("starts six processes from a rank")
def test_what_a_rank_starts_is_no_rank_and_may_have_threads_as_ranks(mpiexec, tmp_path) -> None:
    main = """
    from mpi4py import MPI  # the rank itself need not use hpccomm yet
    if MPI.COMM_WORLD.rank == 0:
        print("mpi4py, fork:", by_pool("fork"))
    MPI.COMM_WORLD.barrier()
    import hpccomm
    comm = hpccomm.new_comm(timeout=90)
    if comm.rank == 0:
        print("spawn:", by_pool("spawn"))
        print("exec:", by_exec())
        print("fork:", by_pool("fork"))
        print("of its own:", by_subprocess(env=cleared()))
        child = os.fork()
        if not child:
            hpccomm.new_comm("loopback").finalize()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        threads = "import hpccomm, sys; hpccomm.new_comm('loopback').finalize(); print('mpi4py.MPI' in sys.modules)"
        print("threads, MPI:", subprocess.check_output([sys.executable, "-c", threads], text=True))
    comm.barrier()
    comm.finalize()
"""
    lines = run(mpiexec, tmp_path, main)
    told = dict(line.split(": ", 1) for line in lines)
    assert told.pop("of its own") == "rank 0 of 1"
    assert told.pop("fork").startswith("BackendUnavailable")
    assert told.pop("threads, MPI") == "False"
    assert told.keys() == {"mpi4py, fork", "spawn", "exec"}
    for way, text in told.items():
        assert text.startswith("LaunchError: this process"), way
        assert "not a rank of the job: it has the variables of rank 0 from process" in text, way
        assert 'if __name__ == "__main__"' in text


@pytest.mark.thorough
def test_of_two_with_the_variables_of_a_rank_one_is_it(mpiexec: Mpiexec, tmp_path: Path) -> None:
    main = """
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK")
    if rank == "0" and len(sys.argv) == 1:  # a wrapper that has nothing to do with MPI itself
        first = subprocess.Popen([sys.executable, __file__, "first"], stdin=-1, stdout=-1, text=True)
        print(first.stdout.readline())
        print("second:", by_subprocess())
        first.communicate("go on")
    else:
        import hpccomm
        comm = hpccomm.new_comm(timeout=20)
        if comm.rank == 0:
            print(f"first: {comm.rank} of {comm.size}", flush=True)
            sys.stdin.read()
        comm.barrier()
"""
    lines = run(mpiexec, tmp_path, main)
    told = dict(line.split(": ", 1) for line in lines)
    assert told["first"] == "0 of 2"
    assert "is rank 0 already" in told["second"]


@pytest.mark.thorough
def test_ranks_of_a_job_that_a_rank_starts_are_ranks(mpiexec: Mpiexec, tmp_path: Path) -> None:
    main = """
    import hpccomm
    comm = hpccomm.new_comm(timeout=60)
    launcher = os.environ.get("HPCCOMM_MPIEXEC") or os.path.join(os.path.dirname(sys.executable), "mpiexec")
    if comm.rank == 0:
        print(by_subprocess(launcher, "-n", "2"))
    comm.barrier()
"""
    lines = run(mpiexec, tmp_path, main)
    assert sorted(lines) == ["rank 0 of 2", "rank 1 of 2"]
