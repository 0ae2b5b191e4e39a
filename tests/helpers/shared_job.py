"""MPI jobs that many tests share: a test costs a message instead of a start of mpiexec.

The process that runs the tests has a `SharedJob` for each number of ranks. This file is also the program
of its ranks. A rank waits for what to run, as arguments of Python ("-c", "-m", or a file), runs it in a
fresh ``__main__``, and says how it ended. It waits on a socket, and takes no processor meanwhile.

What leaves a job unfit for others (an exception that is not caught, a rank that is lost or does not come
back) ends it, and the next test starts another one. Exits, signals and what a launcher prints need a job
of their own: the fixture ``mpiexec``.
"""

import contextlib
import faulthandler
import gc
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
from multiprocessing.connection import Connection, wait
from pathlib import Path

START_SECONDS = 60.0
"""How long the ranks may take to start, on a machine that does other work."""

OTHERS_SECONDS = 20.0
"""How long the other ranks may take once one has failed, before the job is ended."""

TELLING_SECONDS = 2.0
"""How long ranks may take to show where they are."""

FAILED = 1
"""Exit status of a rank whose program raised."""


class SharedJob:
    """A job of `ranks` ranks that runs one program after the other."""

    def __init__(self, launcher: str, ranks: int, environment: dict[str, str]) -> None:
        self._ranks = ranks
        self._environment = environment
        self._folder = tempfile.TemporaryDirectory(prefix="job-")
        folder = Path(self._folder.name)
        self._connections: list[Connection] = []
        self._log = (folder / "log").open("w+")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "socket"))
            listener.listen(ranks)
            listener.settimeout(1.0)
            self._process = subprocess.Popen(
                [launcher, "-n", str(ranks), sys.executable, __file__, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            by_rank = {}
            self._pids: list[int] = []
            until = time.monotonic() + START_SECONDS
            while (
                len(by_rank) < ranks and self._process.poll() is None and time.monotonic() < until
            ):
                with contextlib.suppress(TimeoutError, EOFError):
                    connection = Connection(listener.accept()[0].detach())
                    rank, pid = connection.recv()
                    by_rank[rank] = connection
                    self._pids.append(pid)
            if len(by_rank) < ranks:
                self._stop()
                said = self._said()
                self.end()
                raise RuntimeError(f"a job of {ranks} ranks did not start: {said}")
        self._connections = [by_rank[rank] for rank in range(ranks)]

    @property
    def usable(self) -> bool:
        """Whether it can run another program."""
        return bool(self._connections) and self._process.poll() is None

    def run(
        self, arguments: list[str], timeout: float, env: dict[str, str], cwd: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python ARGUMENTS`` on every rank; return the streams in the order of ranks.

        The ranks have the variables `env`, and those that the launcher gives them.
        """
        statuses: dict[int, int] = {}
        gone = False
        began = time.monotonic()
        absent = sorted(self._environment.keys() - env.keys())
        for connection in self._connections:
            with contextlib.suppress(OSError):  # a rank that is gone is seen below
                connection.send((arguments, env, absent, cwd, timeout))
        deadline = began + timeout + TELLING_SECONDS  # each rank shows where it is, at its timeout
        waiting = dict(zip(self._connections, range(self._ranks), strict=True))
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                rank = waiting.pop(connection)
                try:
                    statuses[rank] = connection.recv()
                except (EOFError, OSError):
                    statuses[rank], gone = FAILED, True
            if FAILED in statuses.values():  # the others may wait for that rank
                deadline = min(deadline, time.monotonic() + OTHERS_SECONDS)
        late = (waiting or gone) and time.monotonic() - began >= timeout
        ended = not waiting and FAILED not in statuses.values()
        if not ended:
            self._stop()
        out, err = ("".join(self._streams(name)) for name in ("out", "err"))
        if not ended:
            err += self._said()
            self.end()
        if late:
            raise subprocess.TimeoutExpired(arguments, timeout, out, err)
        return subprocess.CompletedProcess(arguments, max(statuses.values()), out, err)

    def end(self) -> None:
        """End all its processes, and remove what it has written."""
        self._stop()
        self._log.close()
        self._folder.cleanup()

    def _stop(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections = []
        # What they leave lies in folders of this process: see launch_environment.
        if self._process.poll() is None:
            for pid in (*self._pids, self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _streams(self, name: str) -> list[str]:
        folder = Path(self._folder.name)
        return [(folder / f"{name}-{rank}").read_text() for rank in range(self._ranks)]

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()


def serve(folder: Path) -> None:
    """Run programs until the process that started the job has no more."""
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(folder / "socket"))
        connection = Connection(peer.detach())
    for name in ("out", "err"):  # also where the first program never begins
        (folder / f"{name}-{rank}").touch()
    connection.send((rank, os.getpid()))
    environment, home = dict(os.environ), Path.cwd()
    while True:
        try:
            arguments, variables, absent, cwd, timeout = connection.recv()
        except EOFError:
            # Not by MPI's end: the programs may have left anything.
            os._exit(0)
        os.environ.update(variables)
        for name in absent:
            os.environ.pop(name, None)
        os.chdir(cwd)
        faulthandler.dump_traceback_later(timeout, exit=True)
        with redirected(folder, rank):
            status = run(arguments)
        faulthandler.cancel_dump_traceback_later()
        os.chdir(home)
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
        connection.send(status)


@contextlib.contextmanager
def redirected(folder: Path, rank: int):
    """Send the standard streams' descriptors to files."""
    kept = [os.dup(descriptor) for descriptor in (1, 2)]
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{name}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for descriptor, old in zip((1, 2), kept, strict=True):
            os.dup2(old, descriptor)
            os.close(old)


def run(arguments: list[str]) -> int:
    """Run what ``python ARGUMENTS`` would; return its exit status."""
    kind, *rest = arguments
    before = sys.argv, sys.modules["__main__"], sys.path[:]
    main: types.ModuleType | None
    try:
        if kind == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            sys.argv = ["-c", *rest[1:]]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(rest[0], "<string>", "exec"), main.__dict__)
        else:
            sys.argv = arguments
            sys.path.insert(0, str(Path(kind).parent))
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return FAILED
    except BaseException:  # noqa: BLE001 (the process that started the job is told)
        traceback.print_exc()
        return FAILED
    finally:
        sys.argv, sys.modules["__main__"], sys.path[:] = before
        main = None
        gc.collect()  # what the program made ends with it
    return 0


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
