"""What a PyTorch program does over the backend, as scenarios for a job of several ranks.

``mpiexec -n 4 python scenarios.py`` runs each function without parameters of the modules `calls`, `messages`,
`programs` and `starts`, in their order, or those that are named. Rank 0 prints a line for each: its name and ``ok``, or
what went wrong on which rank, of which the exit status tells too.
"""

import faulthandler
import inspect
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta

import calls
import messages
import peers
import programs
import starts
import torch
import torch.distributed as dist

import hpccomm.torch

SCENARIOS: dict[str, Callable[[], None]] = {
    name: each
    for module in (calls, messages, programs, starts)
    for name, each in vars(module).items()
    if inspect.isfunction(each)
    and each.__module__ == module.__name__
    and not inspect.signature(each).parameters
}


def main() -> None:
    faulthandler.dump_traceback_later(380, exit=True)  # a hang shows itself
    torch.set_num_threads(1)
    hpccomm.torch.init(timeout=timedelta(seconds=60))
    peers.gloo()  # before `groups`, the last, after which c10d names groups differently on the ranks
    outcomes = hpccomm.torch.communicator().dup("outcomes")
    failed = 0
    for name in sys.argv[1:] or SCENARIOS:
        wrong = ""
        try:
            torch.manual_seed(1)
            SCENARIOS[name]()
        except Exception:  # noqa: BLE001 (printed)
            wrong = f"rank {dist.get_rank()}: {traceback.format_exc()}"
            print(name, wrong, file=sys.stderr, flush=True)  # the others may wait for this rank
        wrongs = [each for each in outcomes.all_gather_object(wrong) if each]
        failed += bool(wrongs)
        if dist.get_rank() == 0:
            print(f"scenario {name}: {' '.join(wrongs) or 'ok'}", flush=True)
    outcomes.finalize()
    dist.destroy_process_group()
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main()
