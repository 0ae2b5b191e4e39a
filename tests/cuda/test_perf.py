"""perf on device arrays: every result is verified, the work is timed, and the backend is named."""

import io
import re
import threading
from types import SimpleNamespace

import cupy
import pytest
from alone import alone
from nccl_ranks import run_ranks
from perf_options import options, stays_open

from hpccomm.errors import BackendUnavailable, CollectiveTimeout, CommunicationError, UsageError
from hpccomm.results import reader, table
from hpccomm.runtime.service import Status
from hpccomm.tools.perf import sweep
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.perf.patterns import DEVICE, HOST
from hpccomm.tools.perf.sweep import kind_of_arrays

MOVING = [name for name, collective in COLLECTIVES.items() if collective.what.moves]
SMALL = ("-b", "64", "-e", "4K", "-f", "8", "-n", "4")
ONE_SIZE = ("-b", "4K", "-e", "4K", "-n", "4")
TWO_SIZES = ("-b", "64", "-e", "4K", "-f", "64", "-n", "4")

nccl = pytest.mark.parametrize("way", ["nccl"])
ways = pytest.mark.parametrize("way", ["nccl", "mpi", "staged"])


def perf(comm, *arguments):
    """Return the status, what rank 0 printed, and what it complained of."""
    out, err = io.StringIO(), io.StringIO()
    status = sweep.run(stays_open(comm), options(*arguments), out, err)
    return status, out.getvalue(), err.getvalue()


def on_device(comm, *arguments):
    return perf(comm, *arguments, "--arrays", "device")


def stored(comm, folder):
    """Return the last run of rank 0's file, on rank 0."""
    return reader.read(folder / "run.h5")[-1] if comm.rank == 0 else None


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("way", "collective"),
    [
        *(("nccl", name) for name in MOVING),
        # What they do beside NCCL's is the host's, and tested there.
        *((way, name) for way in ("mpi", "staged") for name in ("all_reduce", "all_to_all_v")),
    ],
)
def test_every_type_and_reduction_is_right(comm, way, collective, pytestconfig):
    # What reductions do on the ways that are not NCCL's is the host's. The average has most to do.
    everything = way == "nccl" and (pytestconfig.getoption("--all") or collective == "all_reduce")
    ops = "all" if everything else "avg"
    status, printed, complaints = on_device(
        comm, collective, "-b", "256", "-e", "256", "-n", "2", "-d", "all", "-o", ops
    )
    assert (status, complaints) == (0, "")
    if comm.rank == 0:
        assert printed.count("Out of bounds values : 0 OK") == 1
        lines = [line.split() for line in printed.splitlines() if line and line[0] != "#"]
        assert {(line[8], line[12]) for line in lines} == {("0", "0")}


@pytest.mark.mpi
@nccl
@pytest.mark.parametrize(
    "arguments",
    [
        *("-z 1 -m 2 -y 1 -M 1", "-r all -I 1 -w 0 -n 1", "-R 1 -u 3", "-G 2 -c 3 -C 1"),
        *(
            pytest.param(each, marks=pytest.mark.thorough)
            for each in ("-z 1 -m 2", "-m 3", "-z 2 -y 1", "-z 3", "-G 1", "-G 3", "-G 2 -m 2")
        ),
    ],
)
def test_flags_do_not_disturb_the_results(comm, way, arguments, pytestconfig):
    sizes = TWO_SIZES if pytestconfig.getoption("--all") else ONE_SIZE
    status, printed, complaints = on_device(comm, "all", *sizes, *arguments.split())
    assert (status, complaints) == (0, "")
    if comm.rank == 0:
        skipped = bool(re.search("# Skipped.*hypercube (on|in)", printed))
        in_some = comm.size > 2 and bool(re.search("-m [23]", arguments))
        assert skipped == (comm.size == 3 or in_some)
        assert printed.count("Out of bounds values : 0 OK") == len(MOVING) - skipped
        assert re.search("# Skipped, as they do not exist: .*barrier on device arrays", printed)
        assert ("# GPU memory usage" in printed) == ("-M 1" in arguments)
        known = "# Registered memory: the library knows the arrays" in printed
        assert known == ("-R 1" in arguments)


@pytest.mark.mpi
@nccl
def test_a_graph_has_no_call_that_goes_through_the_host(comm, way):
    arguments = ["-d", "int32", "-G", "2"]
    by_messages = [*arguments, "-o", "bxor", "--algorithm", "ring"]
    assert on_device(comm, "all_reduce", *ONE_SIZE, *by_messages)[0] == 0
    with pytest.raises(UsageError, match=r"all_reduce.* goes through the host.*--algorithm"):
        on_device(comm, "all_reduce", *ONE_SIZE, *arguments, "-o", "bxor")
    wrong, printed, _ = on_device(comm, "all_reduce", *ONE_SIZE, *arguments, "-o", "all")
    assert wrong == 0
    if comm.rank == 0:
        assert re.search("# Skipped, as they do not exist: .*graphs of all_reduce.* bxor", printed)


@pytest.mark.mpi
@ways
def test_the_header_and_the_file_tell_devices_and_versions(comm, way, tmp_path):
    _, printed, _ = on_device(comm, "broadcast", *SMALL, "--output", str(tmp_path / "run.h5"))
    name = cupy.cuda.runtime.getDeviceProperties(comm.device)["name"].decode()
    if comm.rank == 0:
        run = stored(comm, tmp_path)
        assert [rank.device_info for rank in run.info.ranks].count(name) >= 1
        assert all(re.fullmatch(r"GPU-[-0-9a-f]{36}", each.uuid) for each in run.info.devices)
        assert len(run.info.devices) == comm.size
        for rank, device in zip(run.info.ranks, run.info.devices, strict=True):
            assert f"device {rank.device:2d} [{rank.device_hex}] {rank.device_info}" in printed
            assert f"{device.uuid}, node" in printed
        wanted = {"cupy", "cuda_driver", "cuda_runtime"} | ({"nccl"} if way == "nccl" else set())
        assert wanted <= set(run.info.versions)
        assert ("nccl" in run.info.versions) == (way == "nccl")
        assert {row.backend for row in run.rows} == {way}
        # What is stored prints as it was printed.
        text = table.run_text(run.info, run.rows, run.samples, finished=True)
        assert text + run.others.line == printed


@pytest.mark.mpi
@nccl
@pytest.mark.parametrize(
    ("arguments", "repetitions", "calls"), [((), 4, 1), (("-G", "3"), 3, 4), (("-C", "1"), 4, 1)]
)
def test_samples_are_cudas_times_between(comm, way, tmp_path, arguments, repetitions, calls):
    """Between repetitions, or launches of a graph, of the printed block."""
    _, printed, _ = on_device(
        comm, "all_reduce", *SMALL, *arguments, "--output", str(tmp_path / "run.h5")
    )
    if comm.rank == 0:
        run = stored(comm, tmp_path)
        assert run.info.config.graph == 3 * ("-G" in arguments)
        assert ("cputime" in printed) == ("-C" in arguments)
        for index, row in enumerate(run.rows):
            samples = run.samples(index)
            assert row.iterations == repetitions * calls
            assert samples.shape == (repetitions, comm.size)
            assert (samples >= 0).all()
            if "-C" in arguments:  # the time of calls, beside the bandwidth of the work
                assert row.time <= row.bytes / 1e3 / row.algbw * 1.0001
            else:  # the host looks at its clock before the first and after the last of them
                assert samples.sum(axis=0).mean() * 1e6 <= row.time * repetitions * 1.05


@pytest.mark.standin
@pytest.mark.mpi
@nccl
def test_no_event_stands_between_repetitions_that_nobody_wants_the_time_of(comm, way, seen):
    for wanted, timed in ((), 0), (("-I", "1"), 6 * 5):  # of blocks, with one more than repetitions
        del seen[:]
        on_device(comm, "all_reduce", *SMALL, *wanted)
        made = [flags for name, *flags in seen if name == "eventCreate"]
        assert made.count([False]) == timed


@pytest.mark.mpi(min_size=2)  # alone, a sum in place leaves what is there
@nccl
@pytest.mark.parametrize("launches", ["1", "3"])
def test_a_graph_that_records_nothing_is_found(comm, way, monkeypatch, launches):
    call = comm.all_reduce
    capturing = cupy.cuda.get_current_stream

    def forgetful(x, *, out, **how):
        stream = capturing()
        if comm.rank or not cupy.cuda.runtime.streamIsCapturing(stream.ptr):
            call(x, out=out, **how)
        else:  # the others' recorded calls need their peer
            call(cupy.empty_like(x), out=cupy.empty_like(x), **how)

    monkeypatch.setattr(comm, "all_reduce", forgetful)  # a fault that no argument plants
    status, _, complaints = on_device(comm, "all_reduce", *SMALL, "-G", launches)
    assert status == Status.RAISED
    if comm.rank == 0:
        assert "out of place" in complaints
        assert "in place" in complaints


@pytest.mark.mpi
@ways
def test_arrays_go_where_nccl_is(comm, way):
    device = way == "nccl"
    for words, kind in (
        ("", DEVICE if device else HOST),
        ("--backend mpi", HOST),
        ("--backend mpi,nccl", DEVICE),
        ("--backend mpi --arrays device", DEVICE),
        ("--backend nccl --arrays host", HOST),
    ):
        asked = options("all_reduce", *words.split())
        assert kind_of_arrays(stays_open(comm), asked) == kind
    barrier = "nccl" if device else "mpi"  # which moves no arrays
    for given in (("mpi", "all_reduce,send_recv", *ONE_SIZE), (barrier, "barrier", "-n", "4")):
        status, printed, _ = perf(comm, *given[1:], "--backend", given[0])
        assert status == 0
        assert comm.rank or "device -1 [none] host memory" in printed


@pytest.mark.mpi
@pytest.mark.parametrize("way", ["staged"])
def test_what_is_not_to_be_had_is_refused_on_every_rank(comm, way):
    for call, arguments, words in (
        (on_device, "barrier", "barrier moves no arrays"),
        (
            perf,
            "all_reduce -G 2 --backend mpi",
            "-G/--cudagraph 2: CUDA graphs hold device work, and",
        ),
        (on_device, "all_reduce -G 2", "-G/--cudagraph 2: the host takes part .* 'staged'"),
        (on_device, "all_reduce -e 900000G", r"--maxbytes \d+: \d+ ranks on .* would take"),
    ):
        with pytest.raises(UsageError, match=words):
            call(comm, *arguments.split())
    status, printed, _ = on_device(comm, "all_reduce", *ONE_SIZE, "-R", "1")
    assert status == 0
    assert comm.rank or "# Skipped, as they do not exist: registered memory (-R)" in printed


@pytest.mark.standin  # NCCL refuses ranks of one process on one GPU
def test_what_never_gets_done_ends_at_the_deadline():
    over = threading.Event()

    def on_rank(comm):
        calls = iter(range(100))
        call = comm.all_reduce

        def missing(*arrays, **how):
            if comm.rank == 0 or next(calls) != 4:
                call(*arrays, **how)
            else:  # and calls nothing else that others could tell from it
                assert over.wait(60)

        comm.all_reduce = missing
        with pytest.raises(CommunicationError) as caught:
            on_device(comm, "all_reduce", "-b", "64", "-e", "64", "-n", "4", "-T", "1")
        if comm.rank == 0:
            over.set()
        return caught.type, str(caught.value)

    (kind, said), _ = run_ranks(2, on_rank, backend="nccl", timeout=60)
    assert kind is CollectiveTimeout
    assert "deadline is 1 s (-T/--timeout): a rank did not take part" in said


@pytest.mark.standin
@pytest.mark.parametrize("how", ["--backend nccl", "--backend mpi --arrays device"])
def test_without_a_device_one_line_and_status_2(how):
    program = f"from hpccomm.tools.main import main; exit(main('perf all {how}'.split()))"
    done = alone(program, STANDIN_DEVICES="0")
    assert done.returncode == 2, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("hpccomm: error: "))
    assert "CUDA finds no device" in line
    assert ("backend 'nccl' cannot run" in line) == ("nccl" in how)


def test_a_communicator_of_host_arrays_has_no_device_memory():
    from hpccomm.tools.perf.arrays import DeviceMemory

    alone = SimpleNamespace(backends={"host": "another's", "cuda": None}, device=0)
    with pytest.raises(BackendUnavailable, match="another's: it communicates only host arrays"):
        DeviceMemory(alone, options("all_reduce"))
