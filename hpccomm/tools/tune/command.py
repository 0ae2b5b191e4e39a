"""Measure this machine, and write the table from which algorithm="auto" chooses.

For each collective and size it holds the fastest algorithm; the MPI library's own is a candidate.
Run it with the mpiexec and the settings of the program that will use it. The table is valid for
this number of ranks and nodes, this MPI library and this processor. The program reads it from
HPCCOMM_TUNING_FILE.

Examples
--------
  mpiexec -n 4 hpccomm tune --output tuning.h5
  HPCCOMM_TUNING_FILE=tuning.h5 mpiexec -n 4 python program.py
  mpiexec -n 4 hpccomm tune all_reduce,broadcast -b 1K -e 16M -f 2 --output tuning.h5
"""

import argparse
import sys

from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.errors import UsageError
from hpccomm.tools import output
from hpccomm.tools.flag import Flag, FlagGroup
from hpccomm.tools.perf import readers
from hpccomm.tools.perf.options import Sizes
from hpccomm.units import size

TUNED = tuple(name for name, what in DESCRIPTIONS.items() if not what.peers)
"""Collectives that can be tuned. Where ranks list their peers, no size is known to all of them."""


_MEASURING = (
    Flag(
        "--output FILE tuning.h5",
        readers.file,
        "the results file; an existing one gets one more run",
    ),
    Flag("-b --minbytes SIZE 8", size, "smallest size", "minimum_bytes"),
    Flag("-e --maxbytes SIZE 64M", size, "largest size", "maximum_bytes"),
    Flag(
        "-f --stepfactor N 4",
        readers.integer(2),
        "factor between sizes; where the fastest choice changes, a size between is measured as well",
    ),
    Flag(
        "--blocks N 11",
        readers.integer(1),
        "how often each choice is timed at a size, in turns with the others",
    ),
    Flag(
        "--seconds S 0.004",
        readers.duration,
        "about how long each time; a call that takes longer is made once",
    ),
    Flag(
        "--segments SIZE,...",
        readers.segments,
        "bytes that algorithms move at a time, each a choice of its own beside that of the built-in "
        "table (default: none)",
    ),
    Flag("--deterministic", bool, "measure reductions with deterministic=True as well"),
    Flag(
        "--plain",
        bool,
        "leave out calls on registered arrays (comm.empty), which are measured where ranks share memory",
    ),
    Flag(
        "--every",
        bool,
        "try every algorithm that applies, not only those with short estimated times",
    ),
    Flag("--unverified", bool, "do not measure auto by the new table in the end"),
)


FLAGS = (
    Flag(
        "COLLECTIVE all",
        readers.some_of({name: name for name in TUNED}, "is not a collective"),
        f"{readers.ALL}, or some with commas between them: {', '.join(TUNED)}",
        "collectives",
        values="?",
    ),
    FlagGroup(_MEASURING, "measuring"),
)


def run(args: argparse.Namespace) -> int:
    """Measure this machine; return the exit status. Collective: every rank of the job runs it."""
    sizes = Sizes(args.minimum_bytes, args.maximum_bytes, args.stepfactor, 0)
    if sizes.smallest > sizes.largest:
        raise UsageError(
            f"-b/--minbytes {sizes.smallest} is above -e/--maxbytes {sizes.largest}; "
            "give sizes that ascend"
        )
    # Arguments are checked before MPI is started.
    from hpccomm.communicator.creation import new_comm
    from hpccomm.settings import CommOptions
    from hpccomm.tools.progress import terminal
    from hpccomm.tools.tune.calls import TuneRequest
    from hpccomm.tools.tune.table import tune

    request = TuneRequest(
        collectives=args.collectives,
        sizes=sizes,
        blocks=args.blocks,
        seconds=args.seconds,
        segments=args.segments or (),
        deterministic=args.deterministic,
        registered=not args.plain,
        every=args.every,
        verify=not args.unverified,
        output=args.output,
    )
    options = CommOptions(tuning_file="")  # an older table must not influence the measurement
    with new_comm(name="tune", options=options) as comm:
        if comm.size == 1:
            raise UsageError(
                "there is but one rank, and nothing to choose; start several, for example with "
                "mpiexec -n 4 hpccomm tune"
            )
        tune(comm, request, sys.stdout, terminal())
        if comm.rank == 0:
            output.write(f"# Written to {request.output}: set HPCCOMM_TUNING_FILE to it\n")
    return 0
