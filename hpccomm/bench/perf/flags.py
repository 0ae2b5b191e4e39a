"""What `hpccomm perf` can be asked for: nccl-tests' flags, and hpccomm's own.

`FLAGS` is the one list of nccl-tests' flags; the parser and the help are made from it.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from os.path import realpath
from typing import Any

from hpccomm import backends
from hpccomm.bench.perf import readers
from hpccomm.bench.perf.collectives import COLLECTIVES
from hpccomm.bench.perf.names import OPS, TYPES
from hpccomm.bench.perf.options import Options
from hpccomm.bench.perf.readers import ALL
from hpccomm.bench.perf.side import AUTO, DEVICE, HOST
from hpccomm.bench.perf.sizes import Sizes
from hpccomm.dispatch import policy
from hpccomm.errors import UsageError
from hpccomm.results.schema import Config

_TYPE_NAMES = {name: name for name in TYPES} | {dtype.name: name for name, dtype in TYPES.items()}
_OP_NAMES = {name: name for name in OPS}


@dataclass(frozen=True, slots=True)
class Flag:
    """One of nccl-tests' flags.

    Attributes
    ----------
    short, name : str
        ``-b`` and ``--minbytes``.
    metavar : str
        What it takes, in the help.
    default : object
        nccl-tests' default.
    read : callable
        From text; raises ``ArgumentTypeError``.
    meaning : str
        One sentence.
    """

    short: str
    name: str
    metavar: str
    default: Any
    read: Callable[[str], Any]
    meaning: str

    @property
    def help(self) -> str:
        """The meaning, and the default unless it is all that can be given."""
        default = self.default[0] if isinstance(self.default, tuple) else self.default
        if default is None or str(default) == self.metavar:
            return self.meaning
        if default == LARGEST:
            default = f"{LARGEST >> 20}M"
        return f"{self.meaning} (default {default})"


LARGEST = 32 << 20
_MOST = 10_000_000
_MOST_OPERATIONS = 1_000_000
_CTAS = "NCCL is not told how many CTAs to use; set NCCL_MIN_CTAS and NCCL_MAX_CTAS"
_ONE_RANK = "a rank is a process here; start more of them with mpiexec -n"

FLAGS: dict[str, tuple[Flag, ...]] = {
    "sizes": (
        Flag("-b", "minbytes", "SIZE", LARGEST, readers.size, "smallest size"),
        Flag("-e", "maxbytes", "SIZE", LARGEST, readers.size, "largest size"),
        Flag(
            "-i",
            "stepbytes",
            "SIZE",
            None,
            readers.size,
            "each size is so much larger (default 1M)",
        ),
        Flag(
            "-f", "stepfactor", "N", None, readers.integer(1), "each size is so many times the last"
        ),
    ),
    "operations": (
        Flag(
            "-o",
            "op",
            "OP",
            ("sum",),
            readers.named(_OP_NAMES, "reduction"),
            f"reduction: {', '.join(OPS)}; or {ALL}",
        ),
        Flag(
            "-d",
            "datatype",
            "TYPE",
            ("float",),
            readers.named(_TYPE_NAMES, "type"),
            f"type: {', '.join(TYPES)}; or {ALL}",
        ),
        Flag(
            "-r",
            "root",
            "RANK",
            0,
            readers.root,
            f"root of the collectives that have one, or {ALL} (-1)",
        ),
    ),
    "measurement": (
        Flag("-n", "iters", "N", 20, readers.integer(1, _MOST_OPERATIONS), "repetitions"),
        Flag(
            "-w",
            "warmup_iters",
            "N",
            1,
            readers.integer(0, _MOST),
            "repetitions not timed",
        ),
        Flag(
            "-m",
            "agg_iters",
            "N",
            1,
            readers.integer(1, 10_000),
            f"operations batched in a repetition; N times -n is at most {_MOST_OPERATIONS}",
        ),
        Flag(
            "-N", "run_cycles", "N", 1, readers.integer(0), "run all sizes so often; 0 is for ever"
        ),
        Flag(
            "-a",
            "average",
            "0-3",
            1,
            readers.integer(0, 3),
            "time of rank 0, average, minimum or maximum over ranks",
        ),
        Flag(
            "-z",
            "blocking",
            "0-3",
            0,
            readers.integer(0, 3),
            "barrier after each operation (1), or after each repetition and not timed (3); "
            "2 waits for each operation, as calls on host arrays do anyway",
        ),
        Flag(
            "-I", "per_iter_timing", "0/1", 0, readers.integer(0, 1), "statistics over repetitions"
        ),
        Flag("-K", "per_iter_skip", "N", 0, readers.integer(0), "repetitions that they leave out"),
        Flag(
            "-T",
            "timeout",
            "SECONDS",
            0,
            readers.integer(0),
            "deadline of each operation, from its call on; 0 is the communicator's own",
        ),
        Flag(
            "-u",
            "unalign",
            "N",
            0,
            readers.integer(0, 4096),
            "arrays begin so many elements off a page",
        ),
        Flag(
            "-R",
            "local_register",
            "0/1",
            0,
            readers.integer(0, 1),
            "arrays in registered memory: of the host, which the ranks of a node reach directly, or "
            "of the library's allocator on a device",
        ),
    ),
    "on device arrays": (
        Flag(
            "-G",
            "cudagraph",
            "N",
            0,
            readers.integer(0, _MOST_OPERATIONS),
            "record the block into a CUDA graph, and time N launches of it",
        ),
        Flag(
            "-C",
            "report_cputime",
            "0/1",
            0,
            readers.integer(0, 1),
            "print the time until calls have returned; bandwidths remain those of the work",
        ),
        Flag("-y", "stream_null", "0/1", 0, readers.integer(0, 1), "calls on CUDA's null stream"),
    ),
    "verification and output": (
        Flag(
            "-c",
            "check",
            "N",
            1,
            readers.integer(0),
            "verify timed repetitions (1), and N - 1 further operations; 0 does not verify",
        ),
        Flag("-S", "report_timestamps", "0/1", 0, readers.integer(0, 1), "time stamp on each line"),
        Flag("-M", "memory", "0/1", 0, readers.integer(0, 1), "report the memory that was used"),
        Flag("-J", "output_file", "FILE.json", None, readers.json_file, "write nccl-tests' JSON"),
    ),
    "flags of nccl-tests that cannot be followed, taken at their defaults alone": (
        Flag("-t", "nthreads", "1", 1, readers.only(1, _ONE_RANK), "ranks that are threads"),
        Flag("-g", "ngpus", "1", 1, readers.only(1, _ONE_RANK), "devices of a thread"),
        Flag(
            "-p",
            "parallel_init",
            "0",
            0,
            readers.only(0, "there is one thread a process to start communication"),
            "threads that initialise in parallel",
        ),
        Flag("-x", "cta_policy", "-1", -1, readers.only(-1, _CTAS), "CTA policy"),
        Flag(
            "-D",
            "device_implementation",
            "0",
            0,
            readers.only(0, "hpccomm has no kernels of its own"),
            "kernels in place of NCCL's collectives",
        ),
        Flag(
            "-V",
            "device_cta_count",
            "16",
            16,
            readers.only(16, _CTAS),
            "their CTAs",
        ),
    ),
}
"""nccl-tests' flags, by the heading that they stand under in the help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add perf's arguments to a parser."""
    parser.add_argument(
        "collectives",
        metavar="COLLECTIVE[,COLLECTIVE...]",
        type=readers.collectives,
        help=f"{ALL}, or some of {', '.join(COLLECTIVES)}",
    )
    own = parser.add_argument_group("hpccomm's own flags")
    own.add_argument(
        "--backend",
        metavar="NAME[,NAME...]",
        type=readers.listed,
        default=("auto",),
        help=f"one table for each of these: {', '.join(backends.choices())} (default auto)",
    )
    own.add_argument(
        "--arrays",
        choices=(AUTO, HOST, DEVICE),
        default=AUTO,
        help="where all arrays lie (default auto: on devices if NCCL is among the backends, by name or "
        "because auto found it; else in host memory)",
    )
    own.add_argument(
        "--algorithm",
        metavar="NAME[,NAME...]",
        type=readers.listed,
        help=f"one table for each of these: {', '.join(policy.NAMES)}, or {ALL} that the collective "
        "has (default HPCCOMM_ALGORITHM where it applies, else auto)",
    )
    own.add_argument(
        "--output",
        metavar="FILE.h5",
        type=readers.file,
        help="add the run, with all samples, to this file",
    )
    own.add_argument("--csv", metavar="FILE", type=readers.file, help="add the rows to this file")
    for heading in FLAGS:
        add_flags(parser, heading)


def add_flags(parser: argparse.ArgumentParser, heading: str) -> None:
    """Add nccl-tests' flags of one heading to a parser."""
    group = parser.add_argument_group(heading)
    for flag in FLAGS[heading]:
        group.add_argument(
            flag.short,
            f"--{flag.name}",
            metavar=flag.metavar,
            type=flag.read,
            default=flag.default,
            help=flag.help,
        )


def sizes(given: argparse.Namespace) -> Sizes:
    """Return the sizes that ``-b``, ``-e``, ``-i`` and ``-f`` ask for.

    Raises
    ------
    UsageError
        If they do not go together.
    """
    if given.minbytes > given.maxbytes:
        raise UsageError(
            f"-b/--minbytes {given.minbytes} is above -e/--maxbytes {given.maxbytes} (32M each if "
            "not given); give a range from small to large"
        )
    # As in nccl-tests, a factor of 1 means that sizes grow by the step.
    factor = given.stepfactor if given.stepfactor is not None and given.stepfactor > 1 else 0
    if factor and given.stepbytes is not None:
        raise UsageError("-i/--stepbytes and -f/--stepfactor were both given; give one of them")
    if given.stepbytes == 0:
        raise UsageError("-i/--stepbytes 0: sizes would not grow; give 1 or more")
    step = 0 if factor else (1 << 20 if given.stepbytes is None else given.stepbytes)
    return Sizes(given.minbytes, given.maxbytes, factor, step)


def options(given: argparse.Namespace) -> Options:
    """Make the options of what a parser with `add_arguments` read.

    Raises
    ------
    UsageError
        If two flags do not go together.
    """
    swept = sizes(given)
    if given.per_iter_skip and not given.per_iter_timing:
        raise UsageError(
            f"-K/--per_iter_skip {given.per_iter_skip} leaves repetitions out of statistics that "
            "are not asked for; give -I 1 too"
        )
    if given.per_iter_skip >= given.iters:
        raise UsageError(
            f"-K/--per_iter_skip {given.per_iter_skip} leaves none of {given.iters} repetitions; "
            f"give 0 to {given.iters - 1}"
        )
    if given.iters * given.agg_iters > _MOST_OPERATIONS:
        raise UsageError(
            f"-n/--iters {given.iters} times -m/--agg_iters {given.agg_iters} is more than "
            f"{_MOST_OPERATIONS} operations; give less of one of them"
        )
    _check_graph(given)
    _check_files(given)
    asked = Options(
        collectives=given.collectives,
        backends=given.backend,
        algorithms=given.algorithm,
        types=given.datatype,
        ops=given.op,
        root=given.root,
        sizes=swept,
        config=Config(
            minimum_bytes=given.minbytes,
            maximum_bytes=given.maxbytes,
            step_factor=swept.factor,
            step_bytes=swept.step,
            iterations=given.iters,
            warmup_iters=given.warmup_iters,
            aggregated_iterations=given.agg_iters,
            validation=given.check,
            graph=given.cudagraph,
            blocking_collectives=given.blocking,
            average=given.average,
            report_cputime=bool(given.report_cputime),
            report_timestamps=bool(given.report_timestamps),
            per_iter_timing=bool(given.per_iter_timing),
            per_iter_skip=given.per_iter_skip,
            parallel_init=bool(given.parallel_init),
            unalign=given.unalign,
            local_register=given.local_register,
            run_cycles=given.run_cycles,
            nthreads=given.nthreads,
            ngpus=given.ngpus,
            stream_null=bool(given.stream_null),
        ),
        timeout=given.timeout,
        memory=bool(given.memory),
        json=given.output_file,
        csv=given.csv,
        output=given.output,
        arrays=given.arrays,
    )
    for name in asked.collectives:
        if not asked.pairs(name):
            raise UsageError(
                f"-o/--op {asked.ops[0]} means nothing on -d/--datatype {asked.types[0]}; "
                f"give another of them, or {ALL}"
            )
    if asked.arrays == HOST:
        for flag in asked.device_flags():
            raise UsageError(f"{flag}, and --arrays is {HOST}; leave one of them out")
    return asked


def _check_graph(given: argparse.Namespace) -> None:
    """Raise if a flag is given that a recorded block cannot follow."""
    if not given.cudagraph:
        return
    cannot = {
        "-z/--blocking": (given.blocking, "the host cannot wait within what is recorded"),
        "-I/--per_iter_timing": (given.per_iter_timing, "repetitions are not timed within a graph"),
        "-y/--stream_null": (given.stream_null, "nothing is recorded from the null stream"),
    }
    for flag, (value, why) in cannot.items():
        if value:
            raise UsageError(f"-G/--cudagraph and {flag} {value}: {why}; leave one of them out")


def _check_files(given: argparse.Namespace) -> None:
    """Raise if one file is to be written in two ways."""
    named = {"-J/--output_file": given.output_file, "--csv": given.csv, "--output": given.output}
    seen: dict[str, str] = {}
    for flag, path in named.items():
        if path is not None and (other := seen.setdefault(realpath(path), flag)) != flag:
            raise UsageError(f"{other} and {flag} {path} name the same file; give two names")
