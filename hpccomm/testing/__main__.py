"""``python -m hpccomm.testing --backend NAME``: the conformance suite on a backend, for its author.

Under a launcher the processes of the job are the ranks: ``mpiexec -n 3 python -m hpccomm.testing --backend mine``.
With ``--ranks 3``, threads of this process are the ranks. Each case has its own communicator, so that what a fault
leaves behind ends with its case.
"""

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from hpccomm import CommOptions, Communicator, HpccommError, new_comm
from hpccomm.testing import conformance, run_ranks

SECONDS = 20.0
"""Deadline of a call."""


def attempt(comm: Communicator, case: conformance.Case) -> str:
    """Run a case, unless the ranks or their backend lack what it needs. Return its outcome, for example "passed"."""
    why = f"needs {case.min_size} ranks" if comm.size < case.min_size else case.missing(comm)
    if why is None:
        case.run(comm)
    return f"skipped: {why}" if why else "passed"


def main(words: Sequence[str] | None = None) -> int:
    """Run the cases and print their outcomes. Return the exit status: 1 if a case failed, or if none passed."""
    parser = argparse.ArgumentParser("python -m hpccomm.testing", description=__doc__)
    parser.add_argument("--backend", required=True, help="name, as of new_comm()")
    parser.add_argument("--ranks", type=int, help="so many threads are the ranks")
    parser.add_argument("--case", default="", help="only the cases whose names begin so")
    parser.add_argument("--hint", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args(words)
    options = CommOptions(hints=dict(each.partition("=")[::2] for each in args.hint))

    def on_ranks(function: Callable[..., Any], *its: Any) -> Any:
        if args.ranks is None:
            with new_comm(args.backend, timeout=SECONDS, options=options) as comm:
                return function(comm, *its)
        how: Any = {"timeout": SECONDS, "options": options, "backend": args.backend}
        return run_ranks(args.ranks, function, *its, **how)[0]

    try:
        rank, size = on_ranks(lambda comm: (comm.rank, comm.size))
    except HpccommError as error:
        parser.error(str(error))
    if args.ranks is not None and size != args.ranks:
        parser.error(
            f"--ranks is {args.ranks}, and the communicator has {size} ranks: threads are no ranks of "
            f"backend {args.backend!r}; leave --ranks out, and start it by mpiexec -n {args.ranks}"
        )
    where = f"rank {rank} of {size}: "
    outcomes = []
    for case in (each for each in conformance.cases() if each.name.startswith(args.case)):
        try:
            outcomes.append(on_ranks(attempt, case))
        except Exception:  # noqa: BLE001 (the other cases are run as well)
            traceback.print_exc()
            outcomes.append("FAILED")
        sys.stdout.write(f"{where}{case.name} {outcomes[-1]}\n")
        sys.stdout.flush()
    failed, passed = outcomes.count("FAILED"), outcomes.count("passed")
    sys.stdout.write(
        f"{where}{failed} failed, {passed} passed, {len(outcomes) - passed - failed} skipped\n"
    )
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
