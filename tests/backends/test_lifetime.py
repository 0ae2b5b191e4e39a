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
    lines = printed("""
from time import sleep
from hpccomm.runtime.service import start_thread
first, second, third = map(Late, ('kept', 'let go', 'ordinary'))
start_thread('one of those that are there with MPI or devices', sleep, 60)
keep(first, second)
let_go(second)
del first, second, third
print('end', flush=True)
""")
    assert lines == ["let go is gone", "ordinary is gone", "end"]


@pytest.mark.parametrize("fails", ["1 / 0", "os.kill(os.getpid(), signal.SIGINT)"])
def test_the_steps_of_the_exit_run_in_their_order_even_if_one_fails(fails: str) -> None:
    lines = printed(f"""
import signal
atexit.register(lambda: print('a library'))
at_exit(ExitStep.MPI, lambda: print('mpi'))
at_exit(ExitStep.DEVICES, lambda: print('devices'))
at_exit(ExitStep.DEVICES, lambda: {fails})
at_exit(ExitStep.THREADS, lambda: print('threads'))
again = lambda: print('more threads')
at_exit(ExitStep.THREADS, again)
at_exit(ExitStep.THREADS, again)
atexit.register(lambda: print('the program'))
""")
    assert lines == ["the program", "devices", "threads", "more threads", "mpi", "a library"]


def test_a_forked_child_runs_its_steps_and_no_signal_to_it_before_reaches_its_parent() -> None:
    lines = printed("""
import signal
reader, writer = os.pipe()
os.set_blocking(reader, False)
os.set_blocking(writer, False)
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'handled\\n'))
signal.set_wakeup_fd(writer)
after_fork(lambda: os.kill(os.getpid(), signal.SIGTERM))
after_fork(lambda: signal.set_wakeup_fd(-1))
after_fork(lambda: os.write(1, b'last\\n'))
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
try:
    print('woken by', os.read(reader, 8))
except BlockingIOError:
    print('left alone', signal.pthread_sigmask(signal.SIG_BLOCK, []))
""")
    assert sorted(lines) == ["handled", "last", "left alone set()"]
