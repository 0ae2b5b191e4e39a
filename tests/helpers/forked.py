"""Programs in processes of their own, which cost a fork and no start of Python with all its imports.

The process that runs the tests starts this file once, as a program, with the modules that it is to
import. That process forks for each program. What is forked runs it as ``__main__`` and ends as Python
does, with all that is done at exit. Modules that begin something (MPI, CUDA, threads) are for the
programs to import, or to use first.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path


class Forks:
    """A process that has imported modules, and runs programs in forks of it."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, program: str, *, timeout: float = 60.0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, with more variables in its environment.

        The variables of this process are those of its start.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__, *self._modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with tempfile.TemporaryDirectory(prefix="fork-") as name:
            out, err = Path(name, "out"), Path(name, "err")
            asked = [program, env or {}, str(out), str(err), timeout]
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            status = process.stdout.readline()
            if not status:
                raise RuntimeError(f"no program can be run after an import of {self._modules}")
            told = (out.read_text(), err.read_text())
        if int(status) == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(program, timeout, *told)
        return subprocess.CompletedProcess(program, int(status), *told)

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


def program() -> str:
    """Fork for each program that is asked for; return in the fork, with the program."""
    for line in sys.stdin:
        text, variables, out, err, timeout = json.loads(line)
        child = os.fork()
        if not child:
            for descriptor, path, flags in (
                (0, os.devnull, os.O_RDONLY),
                (1, out, os.O_WRONLY | os.O_CREAT),
                (2, err, os.O_WRONLY | os.O_CREAT),
            ):
                file = os.open(path, flags)
                os.dup2(file, descriptor)
                os.close(file)
            os.environ.update(variables)
            os.setpgid(0, 0)
            signal.alarm(math.ceil(timeout))  # ends what hangs
            return text
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what it forked itself
        print(status, flush=True)
    raise SystemExit


if __name__ == "__main__":
    for module in sys.argv[1:]:
        __import__(module)
    sys.argv = ["-c"]
    exec(compile(program(), "<program>", "exec"))
