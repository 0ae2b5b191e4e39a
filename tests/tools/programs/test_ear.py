"""``hpccomm record`` hears every call of a program of plain mpi4py, and changes nothing that the program sees.

The truth on calls is a library for profiling, by the interface that the MPI standard has for tools (section 15.2 of
MPI 4.1): it counts between two calls of ``MPI_Pcontrol``. The truth on behaviour is mpi4py's own test suite.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from alone import python

from hpccomm.contracts.signature import CallFingerprint
from hpccomm.results import recording_file
from hpccomm.results.recording import Recording, collectives, messages
from hpccomm.runtime.recorder import BLOCKING, ENDED
from hpccomm.tools.programs.ear.calls import HeardGroup, Now

Job = Callable[..., subprocess.CompletedProcess[str]]

COUNTED = """
Send(const void *b, int n, MPI_Datatype t, int d, int g, MPI_Comm c)
Ssend(const void *b, int n, MPI_Datatype t, int d, int g, MPI_Comm c)
Recv(void *b, int n, MPI_Datatype t, int s, int g, MPI_Comm c, MPI_Status *u)
Isend(const void *b, int n, MPI_Datatype t, int d, int g, MPI_Comm c, MPI_Request *r)
Irecv(void *b, int n, MPI_Datatype t, int s, int g, MPI_Comm c, MPI_Request *r)
Probe(int s, int g, MPI_Comm c, MPI_Status *u)
Mprobe(int s, int g, MPI_Comm c, MPI_Message *m, MPI_Status *u)
Mrecv(void *b, int n, MPI_Datatype t, MPI_Message *m, MPI_Status *u)
Start(MPI_Request *r)
Barrier(MPI_Comm c)
Ibarrier(MPI_Comm c, MPI_Request *r)
Bcast(void *b, int n, MPI_Datatype t, int o, MPI_Comm c)
Reduce(const void *b, void *v, int n, MPI_Datatype t, MPI_Op p, int o, MPI_Comm c)
Allreduce(const void *b, void *v, int n, MPI_Datatype t, MPI_Op p, MPI_Comm c)
Iallreduce(const void *b, void *v, int n, MPI_Datatype t, MPI_Op p, MPI_Comm c, MPI_Request *r)
Scan(const void *b, void *v, int n, MPI_Datatype t, MPI_Op p, MPI_Comm c)
Gather(const void *b, int n, MPI_Datatype t, void *v, int m, MPI_Datatype y, int o, MPI_Comm c)
Allgather(const void *b, int n, MPI_Datatype t, void *v, int m, MPI_Datatype y, MPI_Comm c)
Alltoall(const void *b, int n, MPI_Datatype t, void *v, int m, MPI_Datatype y, MPI_Comm c)
Comm_split(MPI_Comm c, int o, int k, MPI_Comm *n)
Comm_dup(MPI_Comm c, MPI_Comm *n)
Comm_free(MPI_Comm *c)
Cart_create(MPI_Comm c, int n, const int *d, const int *p, int o, MPI_Comm *m)
Win_create(void *b, MPI_Aint n, int u, MPI_Info i, MPI_Comm c, MPI_Win *w)
Win_fence(int a, MPI_Win w)
Win_free(MPI_Win *w)
Put(const void *b, int n, MPI_Datatype t, int k, MPI_Aint a, int m, MPI_Datatype y, MPI_Win w)
File_open(MPI_Comm c, const char *f, int a, MPI_Info i, MPI_File *h)
File_write_at_all(MPI_File h, MPI_Offset o, const void *b, int n, MPI_Datatype t, MPI_Status *u)
File_close(MPI_File *h)
"""
"""The functions of C that are counted."""

COUNTER = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
static const char *names[] = {NAMES};
static int counts[sizeof names / sizeof *names], counting;
int MPI_Pcontrol(const int level, ...) {
    if (!level) {
        char path[4096];
        int rank;
        PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
        snprintf(path, sizeof path, "%s/counted%d", getenv("COUNTED_FOLDER"), rank);
        FILE *file = fopen(path, "w");
        for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
            fprintf(file, "%s\\"%s\\": %d", i ? ", " : "{", names[i], counts[i]);
        fprintf(file, "}");
        fclose(file);
    }
    counting = level;
    return MPI_SUCCESS;
}
"""

IN_MPI4PY = {
    "Comm_split": "Split",
    "Comm_dup": "Dup",
    "Comm_free": "Free",
    "Cart_create": "Create_cart",
    "Win_create": "Create",
    "Win_fence": "Fence",
    "Win_free": "Free",
    "File_open": "Open",
    "File_write_at_all": "Write_at_all",
    "File_close": "Close",
    "Mrecv": "Recv",
}
"""mpi4py's name of a function, where it is another one."""

EVERY_CALL = """
import sys
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size
x, y, many = np.full(10, float(rank)), np.empty(10), np.empty(10 * size)
MPI.Pcontrol(1)
for _ in range(7):
    requests = [comm.Irecv(y, left), comm.Isend(x, right)]
    MPI.Request.Waitall(requests)
for _ in range(3):
    if rank == 0:
        comm.Send(x, 1, 5)
        comm.Ssend(x, 1, 6)
    if rank == 1:
        comm.Probe(0, 5)
        comm.Recv(y, 0, 5)
        comm.Mprobe(0, 6).Recv(y)
    comm.Barrier()
    comm.Ibarrier().Wait()
    comm.Bcast(x, 1)
    comm.Reduce(x, y)
    comm.Allreduce(x, y, MPI.MAX)
    comm.Iallreduce(x, y).Wait()
    comm.Scan(x, y)
    comm.Gather(x, many if rank == 0 else None)
    comm.Allgather(x, many)
    comm.Alltoall(many.copy(), many)
sending, receiving = comm.Send_init(x, right), comm.Recv_init(y, left)
for _ in range(5):
    receiving.Start()
    sending.Start()
    MPI.Request.Waitall([sending, receiving])
sending.Free()
receiving.Free()
half, cart, same = comm.Split(rank % 2, rank), comm.Create_cart([size]), comm.Dup()
half.Allreduce(x, y)
cart.Bcast(x)
same.Barrier()
window = MPI.Win.Create(many, comm=same)
window.Fence()
window.Put(x, right)
window.Fence()
window.Free()
file = MPI.File.Open(comm, sys.argv[1], MPI.MODE_CREATE | MPI.MODE_RDWR)
for place in range(2):
    file.Write_at_all(80 * (place * size + rank), x)
file.Close()
for each in half, cart, same:
    each.Free()
MPI.Pcontrol(0)
"""

PEERS = """
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
x = np.zeros(100)
if rank:
    comm.Send(x[: 10 * rank], 0, tag=rank)  # send
else:
    for _ in range(size - 1):
        comm.Recv(x, MPI.ANY_SOURCE, MPI.ANY_TAG)  # any
comm.Barrier()  # meet
if rank:
    comm.send({"rank": rank}, dest=np.int64(0), tag=70 + rank)  # send object
else:
    requests = [comm.irecv(source=each) for each in range(1, size)]  # objects
    MPI.Request.waitall(requests)
comm.Sendrecv(x[:5], (rank + 1) % size, 3, [x, 8, MPI.DOUBLE], (rank - 1) % size, 3)  # both
comm.Bcast([x, 7, "d"], root=1)  # from 1
comm.allreduce(x)  # object
"""

LIKE_MPI4PY = """
import builtins, copy, pickle, sys, threading
import numpy as np

assert builtins.theirs  # by the site's sitecustomize

assert "mpi4py.MPI" not in sys.modules
def late():
    import mpi4py
    mpi4py.rc.initialize = False
    import mpi4py.MPI
thread = threading.Thread(target=late)
thread.start()
thread.join()
from mpi4py import MPI
assert not MPI.Is_initialized()
world = MPI.COMM_WORLD
MPI.Init()
for name in ("COMM_WORLD", "COMM_SELF", "COMM_NULL", "REQUEST_NULL", "WIN_NULL", "FILE_NULL", "MESSAGE_NO_PROC"):
    each = getattr(MPI, name)
    assert pickle.loads(pickle.dumps(each)) is each and copy.copy(each) is each, name
    again = pickle.loads(pickle.dumps(type(each)(each)))
    assert again == each and again is not each and type(again) is type(each), name

class Mine(MPI.Intracomm):
    def twice(self, value):
        return 2 * self.allreduce(value)

class Window(MPI.Win):
    pass

mine = Mine(world)
assert type(mine.Dup()) is Mine and mine.Dup().twice(1) == 2 * world.size
assert isinstance(mine, MPI.Intracomm) and not isinstance(world, Mine) and mine == world
cart = world.Create_cart([world.size])
assert type(cart) is MPI.Cartcomm and isinstance(cart, MPI.Topocomm) and not isinstance(cart, MPI.Graphcomm)
assert issubclass(MPI.Cartcomm, MPI.Intracomm) and not issubclass(MPI.Intercomm, MPI.Intracomm)
assert type(MPI.Comm.fromhandle(cart.handle)) is MPI.Cartcomm
assert type(Window.Allocate(8, comm=world)) is Window
assert world.Split(MPI.UNDEFINED) == MPI.COMM_NULL
for wrong, error in ((lambda: MPI.Topocomm(world), TypeError), (lambda: world.Send(np.zeros(1), [1]), TypeError),
                     (lambda: pickle.dumps(mine.Dup()), ValueError), (lambda: world.Send([b"", 0, "?!"], 0), KeyError)):
    try:
        wrong()
    except error as found:
        assert "hpccomm" not in str(found)
    else:
        raise AssertionError(error)
world.Barrier()
MPI.Finalize()
assert MPI.Is_finalized() and MPI.COMM_WORLD is world
print("as it was")
sys.exit(3)
"""

MIXED = """
import numpy as np
import hpccomm
from mpi4py import MPI
x, y = np.ones(4), np.ones(4)
with hpccomm.new_comm("mpi") as comm:
    for _ in range(5):
        comm.all_reduce(x)
    for _ in range(3):
        MPI.COMM_WORLD.Allreduce(x, y)
"""

PARENT = """
import multiprocessing, os, subprocess, sys
from mpi4py import MPI
def child():
    from mpi4py import MPI
    print("a child", len(sys.argv), flush=True)
if __name__ == "__main__":
    MPI.COMM_WORLD.Barrier()
    if sys.argv[1:] != ["inner"]:
        environ = {n: v for n, v in os.environ.items() if not n.startswith(("OMPI_", "PMIX_", "PRTE_"))}
        subprocess.run([sys.executable, __file__, "inner"], check=True, env=environ, timeout=30)
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
    MPI.COMM_WORLD.Barrier()
"""


def recorded(tmp_path: Path, program: str) -> list[str]:
    """Return the arguments of Python that record a program to ``t.h5``."""
    file = tmp_path / "program.py"
    file.write_text(program)
    return [*record(tmp_path), sys.executable, str(file)]


def record(tmp_path: Path) -> list[str]:
    """Return the arguments of Python that record what follows."""
    return ["-m", "hpccomm", "record", "--output", str(tmp_path / "t.h5"), "--"]


def read(tmp_path: Path) -> Recording:
    """Return what the ranks have recorded to ``t.h5``."""
    return recording_file.joined(tmp_path / "t.h5")


@pytest.fixture(scope="session")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library that counts calls, and writes how many to files ``counted0``, ``counted1``, ..."""
    folder = tmp_path_factory.mktemp("counter")
    library, source = folder / "libcounter.so", folder / "counter.c"
    compiler = shutil.which("mpicc", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if compiler is None:
        pytest.skip("mpicc is not installed")
    functions = re.findall(r"(\w+)(\(.*\))", COUNTED)
    text = COUNTER.replace("NAMES", ", ".join(f'"{name}"' for name, _ in functions))
    for number, (name, parameters) in enumerate(functions):
        given = ", ".join(re.findall(r"(\w)[,)]", parameters))
        count = f"{{ counts[{number}] += counting; return PMPI_{name}"
        text += f"int MPI_{name}{parameters} {count}({given}); }}\n"
        if re.search(r"\bint [nmu],", parameters) and name != "Cart_create":
            # mpi4py calls the functions of large counts where MPI has them, as MPICH.
            large = re.sub(r"\bint ([nm]),", r"MPI_Count \1,", parameters).replace(
                "int u", "MPI_Aint u"
            )
            text += (
                f"#if MPI_VERSION >= 4\nint MPI_{name}_c{large} {count}_c({given}); }}\n#endif\n"
            )
    source.write_text(text)
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"mpicc makes no library: {done.stderr.splitlines()[:1]}")
    return library


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_call_that_a_profiler_counts_is_recorded(
    mpiexec: Job, tmp_path: Path, counter: Path, ranks: int
) -> None:
    words = recorded(tmp_path, EVERY_CALL)
    env = {"LD_PRELOAD": str(counter), "COUNTED_FOLDER": str(tmp_path)}
    done = mpiexec(ranks, *words, str(tmp_path / "data"), env=env)
    assert done.returncode == 0, done.stderr
    recording = read(tmp_path)
    assert recording.status == "completed"
    for rank in range(ranks):
        counted: Counter[str] = Counter()
        for name, count in json.loads((tmp_path / f"counted{rank}").read_text()).items():
            counted[IN_MPI4PY.get(name, name)] += count
        heard = Counter(
            recording.signatures[each].values["mpi"]
            for each in recording.calls["signature"][recording.calls.of_rank(rank)]
        )
        # The starts of persistent requests are calls of these.
        heard["Start"] = heard.pop("Send_init") + heard.pop("Recv_init")
        assert heard == +counted
    assert not recording.calls["failed"].any()


def test_peers_tags_bytes_and_lines_are_those_of_the_program(mpiexec: Job, tmp_path: Path) -> None:
    done = mpiexec(3, *recorded(tmp_path, PEERS))
    assert done.returncode == 0, done.stderr
    recording, lines = read(tmp_path), PEERS.splitlines()
    heard: dict[int, list[tuple[object, ...]]] = {0: [], 1: [], 2: []}
    for rank in range(3):
        for number in recording.calls["signature"][recording.calls.of_rank(rank)]:
            each = recording.signatures[number]
            line = lines[int(each.site.rpartition(" ")[2]) - 1].partition("#")[2].strip()
            ends = [each.values.get(name) for name in ("dst", "src", "tag", "root")]
            nbytes = each.values.get("object", each.nbytes)
            heard[rank].append((line, *ends, nbytes))
    assert sorted(heard[0][:2], key=repr) == [
        ("any", None, 1, 1, None, 800),
        ("any", None, 2, 2, None, 800),
    ]
    meet = ("meet", None, None, None, None, 0)
    rest: dict[int, list[tuple[object, ...]]] = {
        0: [meet, ("objects", None, 1, 71, None, "dict"), ("objects", None, 2, 72, None, "dict")],
        1: [("send", 0, None, 1, None, 80), meet, ("send object", 0, None, 71, None, "dict")],
        2: [("send", 0, None, 2, None, 160), meet, ("send object", 0, None, 72, None, "dict")],
    }
    for rank, before in rest.items():
        assert heard[rank][2 if rank == 0 else 0 :] == [
            *before,
            ("both", (rank + 1) % 3, (rank - 1) % 3, 3, None, 64),
            ("from 1", None, None, None, 1, 56),
            ("object", None, None, None, None, "array of float64"),
        ]
    assert [group.ranks for group in recording.groups] == [(0, 1, 2)]
    assert len(collectives(recording)) == 3
    # Four messages to rank 0, and one of each rank to the next.
    assert len(messages(recording).sends) == 7


@pytest.mark.parametrize("start", ["program", "module", "pytest"])
def test_a_program_sees_what_it_would_see_without(mpiexec: Job, tmp_path: Path, start: str) -> None:
    (tmp_path / "program.py").write_text(LIKE_MPI4PY)
    (tmp_path / "test_program.py").write_text(
        "import pytest\ndef test():\n    with pytest.raises(SystemExit): import program\n"
    )
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.theirs = True")
    words = {
        "program": ["program.py"],
        "module": ["-m", "program"],
        "pytest": ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_program.py"],
    }[start]
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = mpiexec(2, *record(tmp_path), sys.executable, *words, cwd=tmp_path, env=env)
    assert done.stdout.count("as it was") == 2, done.stderr
    assert done.returncode == (0 if start == "pytest" else 3)
    recording = read(tmp_path)
    assert recording.status == "completed"
    assert {"split", "barrier"} <= set(recording.operations())


def test_calls_of_hpccomm_are_recorded_once_beside_those_of_mpi4py(
    mpiexec: Job, tmp_path: Path
) -> None:
    done = mpiexec(2, *recorded(tmp_path, MIXED))
    assert done.returncode == 0, done.stderr
    recording = read(tmp_path)
    for rank in range(2):
        calls = recording.calls["signature"][recording.calls.of_rank(rank)]
        made = [recording.signatures[each] for each in calls]
        heard = Counter((each.operation, each.values.get("mpi")) for each in made)
        del heard["finalize", None]  # in two stages
        assert heard == {("all_reduce", None): 5, ("all_reduce", "Allreduce"): 3}


def test_what_a_recorded_program_starts_is_not_recorded(tmp_path: Path) -> None:
    done = python(*recorded(tmp_path, PARENT))
    assert done.returncode == 0, done.stderr
    assert "a child 1" in done.stdout
    assert "not recorded" not in done.stderr
    assert read(tmp_path).calls.count == 2
    assert list(read(tmp_path).operations()) == ["barrier"]


def test_a_python_without_hpccomm_runs_the_program(tmp_path: Path) -> None:
    (tmp_path / "hpccomm.py").write_text("")  # one that cannot record stands before it
    words = recorded(tmp_path, "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(4))")
    start = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); exec(open(sys.argv[1]).read())"
    done = python(*words[:-1], "-c", start, words[-1])
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
    assert done.stderr.count("hpccomm: the program is not recorded") == 1
    quiet = python(*recorded(tmp_path, "print('no MPI')"))
    assert (quiet.returncode, quiet.stdout) == (0, "no MPI\n")
    assert quiet.stderr.count("\n") == 1, quiet.stderr


SUITE = os.environ.get("MPI4PY_TESTS", "")
"""The folder ``test`` of mpi4py's source distribution."""


@pytest.mark.thorough
@pytest.mark.skipif(not SUITE, reason="MPI4PY_TESTS does not name mpi4py's folder test")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_tests_of_mpi4py_pass(mpiexec: Job, tmp_path: Path, ranks: int) -> None:
    chosen = "comm|cco_obj|request|p2p_obj|p2p_buf_matched|objmodel|subclass|util_pkl5|win|file|doc|pickle"
    # C makes objects of mpi4py's own class.
    words = [sys.executable, "main.py", "-f", "-i", f"test_({chosen})", "-x", "testCAPI"]
    done = mpiexec(ranks, *record(tmp_path), *words, cwd=SUITE, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\nOK") == ranks
    assert len(read(tmp_path).groups) > 100


def test_a_probe_that_found_nothing_is_no_wait_beside_another_thread() -> None:
    group = HeardGroup("uid", "name", (0, 1), 0, Now())
    probe = group.begin(CallFingerprint("probe", 0), None, BLOCKING, False)
    group.begin(CallFingerprint("send", 8), None, BLOCKING, False)
    group.drop(probe)
    assert probe[ENDED] is not None


EDGES = """
from mpi4py import MPI
import numpy as np
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
x, y, z = np.zeros(4), np.zeros(4), np.zeros(4)
up = rank + 1 if rank + 1 < size else MPI.PROC_NULL
down = rank - 1 if rank else MPI.PROC_NULL
for _ in range(3):
    requests = [comm.Irecv(y, down, 1), comm.Irecv(z, up, 2)]
    comm.Send(x, up, 1)
    comm.Send(x, down, 2)
    MPI.Request.Waitall(requests)
    if rank == 0:
        status = MPI.Status()
        comm.Probe(MPI.ANY_SOURCE, 7, status)
        comm.Recv(y, status.Get_source(), 7)
        while not comm.Iprobe(1, 8):
            pass
        comm.Recv(y, 1, 8)
    elif rank == 1:
        comm.Send(x, 0, 7)
        comm.Send(x, 0, 8)
receive = comm.Recv_init(y, MPI.ANY_SOURCE, 9) if rank == 0 else None
for sender in range(1, size):
    if rank == 0:
        MPI.Prequest.Startall(requests=[receive])
        receive.Wait()
    elif rank == sender:
        comm.Send(x, 0, 9)
    comm.Barrier()
try:
    comm.Recv(x, src=0)
except TypeError as error:  # mpi4py's own words
    assert "src" in str(error)
short = comm.Irecv(y[:1], 1, 10) if rank == 0 else None
if rank == 1:
    comm.Send(x, 0, 10)
try:
    (short or MPI.REQUEST_NULL).Wait()
except MPI.Exception:
    assert rank == 0
comm.Barrier()
"""


def test_messages_at_edges_and_behind_probes_match(mpiexec: Job, tmp_path: Path) -> None:
    done = mpiexec(3, *recorded(tmp_path, EDGES))
    assert done.returncode == 0, done.stderr
    recording = read(tmp_path)
    operations = recording.of_signature("operation")
    # Four messages of a halo and two more in each step, and one of each other rank in the end.
    assert len(messages(recording).sends) == 3 * (4 + 2) + 2
    assert (operations == "probe").sum() == 3 * 2, "those that found something"
    ends = [
        each.values["src"] for each in recording.signatures if each.values["mpi"] == "Recv_init"
    ]
    assert sorted(ends) == [1, 2]
    own = recording.calls.of_rank(0)
    failed, begin, end = (recording.calls[name][own] for name in ("failed", "begin", "end"))
    assert failed.sum() == 2
    assert end[failed > 0].max() < begin.max(), "a wait that raises ends its calls"
