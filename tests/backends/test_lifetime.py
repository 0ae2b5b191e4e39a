"""Kept memory, the order of the exit, and forks: in processes of their own, which end."""

import pytest
from alone import python

PROGRAM = """
import atexit, os
from hpccomm.runtime.service import ExitStep, after_fork, at_exit, keep, let_go

class Late:
    def __init__(self, name):
        self.name = name
    def __del__(self, write=os.write):
        write(1, f"{self.name} is gone\\n".encode())
"""


def printed(program: str) -> list[str]:
    """Run the program and return the lines that it prints, including those of its end."""
    done = python("-W", "ignore", "-c", PROGRAM + program)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_is_kept_outlives_the_interpreter_and_what_is_let_go_does_not() -> None:
    lines = printed(
        "from time import sleep\n"
        "from hpccomm.runtime.service import start_thread\n"
        "first, second, third = map(Late, ('kept', 'let go', 'ordinary'))\n"
        "start_thread('one of those that are there with MPI or devices', sleep, 60)\n"
        "keep(first, second)\n"
        "let_go(second)\n"
        "del first, second, third\n"
        "print('end', flush=True)\n"
    )
    assert lines == ["let go is gone", "ordinary is gone", "end"]


def test_the_steps_of_the_exit_run_in_their_own_order_and_before_older_exit_functions() -> None:
    lines = printed(
        "atexit.register(lambda: print('a library'))\n"
        "at_exit(ExitStep.MPI, lambda: print('mpi'))\n"
        "at_exit(ExitStep.DEVICES, lambda: print('devices'))\n"
        "at_exit(ExitStep.THREADS, lambda: print('threads'))\n"
        "again = lambda: print('more threads')\n"
        "at_exit(ExitStep.THREADS, again)\n"
        "at_exit(ExitStep.THREADS, again)\n"
        "atexit.register(lambda: print('the program'))\n"
    )
    assert lines == ["the program", "devices", "threads", "more threads", "mpi", "a library"]


@pytest.mark.parametrize("fails", ["1 / 0", "os.kill(os.getpid(), signal.SIGINT)"])
def test_a_step_of_the_exit_that_fails_does_not_keep_the_others_from_running(fails: str) -> None:
    lines = printed(
        "import signal\n"
        f"at_exit(ExitStep.DEVICES, lambda: {fails})\n"
        "at_exit(ExitStep.MPI, lambda: print('mpi'))\n"
    )
    assert lines == ["mpi"]


def test_every_step_runs_in_a_forked_child_and_none_in_the_parent() -> None:
    lines = printed(
        "after_fork(lambda: os.write(1, b'first\\n'))\n"
        "after_fork(lambda: os.write(1, b'second\\n'))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    assert lines == ["first", "second"]


def test_a_signal_to_a_child_before_its_steps_does_not_reach_its_parent() -> None:
    lines = printed(
        "import signal\n"
        "reader, writer = os.pipe()\n"
        "os.set_blocking(reader, False)\n"
        "os.set_blocking(writer, False)\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'handled\\n'))\n"
        "signal.set_wakeup_fd(writer)\n"
        "after_fork(lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
        "after_fork(lambda: signal.set_wakeup_fd(-1))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "try:\n"
        "    print('woken by', os.read(reader, 8))\n"
        "except BlockingIOError:\n"
        "    print('left alone', signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
    )
    assert lines == ["handled", "left alone set()"]
