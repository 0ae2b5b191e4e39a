"""The flags of `hpccomm perf`: nccl-tests' and hpccomm's own.

`FLAGS` is the one list of nccl-tests' flags. The parser, the help, the page of documentation and the
fields of `Config` and `Options` are filled from it: each flag names the field that takes its value.

`hpccomm.cli.perf` parses them; `hpccomm simulate`, `show` and `slurm` share some.
"""

import argparse
import dataclasses
import math
from collections.abc import Iterator
from os.path import realpath
from typing import Any

from hpccomm import backends
from hpccomm.bench.flag import Flag, FlagGroup
from hpccomm.bench.perf import readers
from hpccomm.bench.perf.collectives import COLLECTIVES
from hpccomm.bench.perf.isolated import ROUND_TIME, SYNCS
from hpccomm.bench.perf.memory_kind import AUTO, DEVICE, HOST
from hpccomm.bench.perf.names import OPS, TYPES
from hpccomm.bench.perf.options import Options
from hpccomm.bench.perf.readers import ALL, integer, only, switch
from hpccomm.bench.perf.sizes import Sizes
from hpccomm.bench.perf.split import split
from hpccomm.bench.perf.variants import name_of_variant, variant
from hpccomm.contracts.collectives import ALIASES
from hpccomm.dispatch import policy
from hpccomm.errors import UsageError
from hpccomm.results.links import links
from hpccomm.results.schema import REQUIRED_FRACTION, Config
from hpccomm.units import size

_MOST = 10_000_000
_MOST_OPERATIONS = 1_000_000
_BUDGET = 60.0  # seconds
_PASSES = 10
_COUNT = integer(1, 10_000)
_CTAS = "hpccomm does not set the number of CTAs; set NCCL_MIN_CTAS and NCCL_MAX_CTAS"
_ONE_RANK = "a rank is a process here; start more of them with mpiexec -n"
_NO_THREADS = "there is one thread a process to start communication"
_NO_KERNELS = "hpccomm has no kernels of its own"

_collectives = readers.some_of(
    COLLECTIVES | {alias: COLLECTIVES[name] for alias, name in ALIASES.items()},
    "is not a collective",
)
_types = readers.some_of(
    {name: name for name in TYPES} | {dtype.name: name for name, dtype in TYPES.items()},
    "is not a type",
)
_json_file = readers.file_ending_in(
    ".json", "has no known suffix; JSON is what can be written: give a name"
)
_ops = readers.some_of({name: name for name in OPS}, "is not a reduction")

FLAGS: dict[str, tuple[Flag, ...]] = {
    "sizes": (
        Flag("-b --minbytes SIZE 32M", size, "smallest size", "minimum_bytes"),
        Flag("-e --maxbytes SIZE 32M", size, "largest size", "maximum_bytes"),
        Flag("-i --stepbytes SIZE", size, "step between sizes (default 1M)", "step_bytes"),
        Flag("-f --stepfactor N", integer(1), "factor between sizes", "step_factor"),
    ),
    "operations": (
        Flag("-o --op OP[,OP...] sum", _ops, f"reductions: {', '.join(OPS)}; or {ALL}", "ops"),
        Flag(
            "-d --datatype TYPE[,TYPE...] float",
            _types,
            f"types: {', '.join(TYPES)}; or {ALL}",
            "types",
        ),
        Flag("-r --root RANK 0", readers.root, f"root of rooted collectives, or {ALL} (-1)"),
    ),
    "measurement": (
        Flag("-n --iters N 20", integer(1, _MOST_OPERATIONS), "repetitions", "iterations"),
        Flag("-w --warmup_iters N 1", integer(0, _MOST), "warm-up repetitions, not timed"),
        Flag(
            "-m --agg_iters N 1",
            _COUNT,
            f"operations batched in a repetition; N times -n is at most {_MOST_OPERATIONS}",
            "aggregated_iterations",
        ),
        Flag("-N --run_cycles N 1", integer(0), "passes over all sizes; 0 repeats them for ever"),
        Flag(
            "-a --average 0-3 1",
            integer(0, 3),
            "time of rank 0, or average, minimum or maximum over ranks",
        ),
        Flag(
            "-z --blocking 0-3 0",
            integer(0, 3),
            "barrier after each operation (1), or after each repetition and not timed (3); "
            "2 waits for each operation, as calls on host arrays do anyway",
            "blocking_collectives",
        ),
        Flag("-I --per_iter_timing 0/1 0", switch, "statistics over repetitions"),
        Flag("-K --per_iter_skip N 0", integer(0), "first repetitions that statistics leave out"),
        Flag(
            "-T --timeout SECONDS 0",
            integer(0),
            "deadline of each operation, from its call on; 0 is that of the communicator",
        ),
        Flag("-u --unalign N 0", integer(0, 4096), "elements from a page boundary to each array"),
        Flag(
            "-R --local_register 0/1 0",
            integer(0, 1),
            "arrays in registered memory: on the host, memory that the ranks of a node reach "
            "directly; on a device, memory of the library's allocator",
        ),
    ),
    "on device arrays": (
        Flag(
            "-G --cudagraph N 0",
            integer(0, _MOST_OPERATIONS),
            "record the block into a CUDA graph, and time N launches of it",
            "graph",
        ),
        Flag(
            "-C --report_cputime 0/1 0",
            switch,
            "print the time until calls return; bandwidths remain those of the work",
        ),
        Flag("-y --stream_null 0/1 0", switch, "calls on CUDA's null stream"),
    ),
    "verification and output": (
        Flag(
            "-c --check N 1",
            integer(0),
            "verify timed repetitions (1), and N - 1 further operations; 0 does not verify",
            "validation",
        ),
        Flag("-S --report_timestamps 0/1 0", switch, "time stamp on each line"),
        Flag("-M --memory 0/1 0", switch, "report the memory that was used"),
        Flag("-J --output_file FILE.json", _json_file, "write nccl-tests' JSON", "json"),
    ),
    "flags of nccl-tests that hpccomm accepts only at their defaults": (
        Flag("-t --nthreads 1 1", only(1, _ONE_RANK), "ranks that are threads"),
        Flag("-g --ngpus 1 1", only(1, _ONE_RANK), "devices of a thread"),
        Flag("-p --parallel_init 0 0", only(False, _NO_THREADS), "threads that initialise at once"),
        Flag("-x --cta_policy -1 -1", only(-1, _CTAS), "CTA policy"),
        Flag(
            "-D --device_implementation 0 0",
            only(0, _NO_KERNELS),
            "kernels in place of NCCL's collectives",
        ),
        Flag("-V --device_cta_count 16 16", only(16, _CTAS), "CTAs of those kernels"),
    ),
}
"""nccl-tests' flags, by the heading under which the help lists them."""


EXPECTED = (
    Flag(
        "--expect FILE|LINK",
        readers.named,
        "compare rows with the expectations in this file, or with a link's rate "
        f"({', '.join(links())}; 8xinfiniband-ndr for 8 ports a node); too little fails",
        "expected",
    ),
    Flag(
        "--at-least PERCENT",
        readers.percentage,
        f"part of the expectation that is enough (default {REQUIRED_FRACTION:.0%})",
        "near",
    ),
)
"""Flags of perf and show that name expectations."""

NOTHING_EXPECTED = "--at-least is about what --expect names, which was not given; give both"

OWN = (
    Flag(
        "--backend NAME[,NAME...] auto",
        readers.listed,
        f"one table for each of these: {', '.join(backends.choices())}",
        "backends",
    ),
    readers.choice(
        "--arrays",
        (AUTO, HOST, DEVICE),
        "kind of memory",
        "memory of all arrays (default auto: device memory if NCCL is among the backends, by name or "
        "because auto found it; else host memory)",
        AUTO,
    ),
    Flag(
        "--algorithm NAME[,NAME...]",
        readers.algorithms(policy.NAMES, "is not an algorithm"),
        f"one table for each of: {', '.join(policy.NAMES)}, other packages' names, or {ALL} that the "
        "collective has "
        "(default HPCCOMM_ALGORITHM where it applies, else auto)",
        "algorithms",
    ),
    Flag(
        "--split HOW",
        split,
        "measure in groups of ranks at the same time: those whose numbers AND, OR, MOD or DIV a number are equal, "
        "such as 'MOD 8', as with nccl-tests' NCCL_TESTS_SPLIT",
    ),
    Flag(
        "--device N",
        integer(0, _MOST),
        "CUDA device of a process, as with nccl-tests' NCCL_TESTS_DEVICE (default its number on the node)",
    ),
    Flag("--output FILE.h5", readers.file, "add the run, with all samples, to this file"),
    Flag("--csv FILE", readers.file, "add the rows to this file"),
    Flag(
        "--min-bw GBPS",
        readers.bandwidth,
        "the least average bus bandwidth: below 0.9 of it a table fails, as with nccl-tests' "
        "NCCL_TESTS_MIN_BW",
        "least_busbw",
    ),
    *EXPECTED,
)
"""hpccomm's own flags."""

SOUND = (
    Flag(
        "--sync HOW",
        readers.one_of(SYNCS, "way to start repetitions"),
        f"time each row once more, by repetitions that all ranks start together: {', '.join(SYNCS)}; "
        "lines of comment behind the table have the times",
    ),
    Flag(
        "--ci PERCENT",
        readers.percentage,
        "repeat those until the 95 % confidence interval of their median is as narrow as +- this; "
        f"--sync is then {ROUND_TIME} unless it is given",
        "interval",
    ),
    Flag(
        "--budget SECONDS",
        readers.duration,
        "time for the isolated repetitions, shared out over all rows (default with --ci 60s)",
    ),
    Flag(
        "--interleave VARIANT",
        variant,
        "measure two variants in turns, in random order, and compare them at once: an algorithm (ring), a "
        "backend, variables (HPCCOMM_SEGMENT=65536), or several such words with blanks between them, in quotes",
        "variants",
        values=2,
    ),
    Flag("--passes N", _COUNT, f"passes of --interleave over all sizes (default {_PASSES})"),
    Flag(
        "--launches K",
        _COUNT,
        "start the whole measurement K times, one after another, each with a run in --output; without a "
        "launcher in front of this command",
    ),
    Flag(
        "--launcher COMMAND",
        readers.command,
        "what starts the ranks of each launch, such as 'mpiexec -n 4' (default in a Slurm job srun)",
    ),
    Flag(
        "--series NAME:LAUNCH:LAUNCHES",
        readers.series,
        "record the run as a launch of a series, as --launches has each of its launches do",
    ),
    Flag(
        "--variant NAME",
        name_of_variant,
        "record the run as one of this variant, as --launches with --interleave has each of its launches do",
    ),
)
"""Flags of isolated repetitions, and of repeated launches."""


ARGUMENTS: tuple[Flag | FlagGroup, ...] = (
    Flag(
        "COLLECTIVE[,COLLECTIVE...]",
        _collectives,
        f"{ALL}, or some of {', '.join(COLLECTIVES)}",
        "collectives",
    ),
    FlagGroup(OWN, "hpccomm's own flags"),
    FlagGroup(SOUND, "sound timing"),
    *(FlagGroup(group, heading) for heading, group in FLAGS.items()),
)
"""The parsed command line of perf."""


def sizes(args: argparse.Namespace) -> Sizes:
    """Return the sizes that ``-b``, ``-e``, ``-i`` and ``-f`` describe.

    Raises
    ------
    UsageError
        If they contradict each other.
    """
    if args.minimum_bytes > args.maximum_bytes:
        raise UsageError(
            f"-b/--minbytes {args.minimum_bytes} is above -e/--maxbytes {args.maximum_bytes} (32M "
            "each if not given); give a range from small to large"
        )
    # As in nccl-tests, a factor of 1 means that sizes grow by the step.
    factor = args.step_factor if args.step_factor is not None and args.step_factor > 1 else 0
    if factor and args.step_bytes is not None:
        raise UsageError("-i/--stepbytes and -f/--stepfactor were both given; give one of them")
    if args.step_bytes == 0:
        raise UsageError("-i/--stepbytes 0: sizes would not grow; give 1 or more")
    step = 0 if factor else (1 << 20 if args.step_bytes is None else args.step_bytes)
    return Sizes(args.minimum_bytes, args.maximum_bytes, factor, step)


def options(args: argparse.Namespace) -> Options:
    """Return the options that a parser with `ARGUMENTS` has read.

    Raises
    ------
    UsageError
        If two flags contradict each other.
    """
    swept = sizes(args)
    for message in _contradictions(args):
        raise UsageError(message)
    values = vars(args) | {"step_factor": swept.factor, "step_bytes": swept.step, "sizes": swept}
    values |= _derived(args)
    config = Config(**_fields(Config, values))
    result = Options(**_fields(Options, values | {"config": config}))
    for collective in result.collectives:
        result.pairs(collective)  # raises without any
    if result.arrays == HOST:
        result.refuse_device_flags(f"--arrays is {HOST}; leave one of them out")
    return result


def _derived(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that follow from several flags, or whose default does."""
    series = dict(args.series or {}) | ({"variant": args.variant} if args.variant else {})
    variants = args.variants and tuple(args.variants)
    return {
        "near": args.near or REQUIRED_FRACTION,
        "sync": args.sync or (ROUND_TIME if args.interval else ""),
        "interval": args.interval or 0.0,
        "budget": args.budget or (_BUDGET if args.interval else math.inf),
        "series": series,
        "variants": variants,
        "run_cycles": (args.passes or _PASSES) if variants else args.run_cycles,
    }


def _fields(kind: type[Config | Options], values: dict[str, Any]) -> dict[str, Any]:
    return {field.name: values[field.name] for field in dataclasses.fields(kind)}


def _contradictions(args: argparse.Namespace) -> Iterator[str]:
    """Yield an error message for each pair of flags that contradict each other."""
    skip, number = args.per_iter_skip, args.iterations
    if skip and not args.per_iter_timing:
        yield (
            f"-K/--per_iter_skip {skip} leaves repetitions out of statistics that were not "
            "requested; give -I 1 too"
        )
    if skip >= number:
        yield (
            f"-K/--per_iter_skip {skip} leaves none of {number} repetitions; give 0 to {number - 1}"
        )
    if number * args.aggregated_iterations > _MOST_OPERATIONS:
        yield (
            f"-n/--iters {number} times -m/--agg_iters {args.aggregated_iterations} is more than "
            f"{_MOST_OPERATIONS} operations; lower one of them"
        )
    isolated = args.sync or args.interval
    if args.budget and not isolated:
        yield (
            f"--budget {args.budget:g}s is the time of isolated repetitions, which were not requested; "
            "give --sync or --ci too"
        )
    if args.launcher and not args.launches:
        yield "--launcher starts the launches of --launches, which was not given; give both or none"
    if args.launches and args.output is None:
        yield (
            f"--launches {args.launches} needs --output FILE.h5, which gets a run from each launch"
        )
    if args.launches and args.series:
        yield "--launches gives each launch its --series; leave one of them out"
    if args.near is not None and args.expected is None:
        yield NOTHING_EXPECTED
    if args.passes and args.variants is None:
        yield (
            f"--passes {args.passes} belongs to --interleave, which was not given; for passes of a "
            "table give -N"
        )
    if args.variants is not None:
        yield from _unlike_variants(args)
    for one, other, used, why in _exclusive(args):
        if used:
            yield f"{one} and {other}: {why}; leave one of them out"
    files = {"-J/--output_file": args.json, "--csv": args.csv, "--output": args.output}
    seen: dict[str, str] = {}
    for flag, path in files.items():
        if path is not None and (other := seen.setdefault(realpath(path), flag)) != flag:
            yield f"{other} and {flag} {path} name the same file; give two names"


def _exclusive(args: argparse.Namespace) -> Iterator[tuple[str, str, bool, str]]:
    """Yield flags that exclude each other, whether both are used, and why."""
    together = "groups do not start repetitions together"
    yield "--split", "--sync or --ci", args.split and (args.sync or args.interval), together
    for flag, used, why in (
        ("-J/--output_file", args.json, "nccl-tests' JSON has no place for variants"),
        ("--expect", args.expected, "it is about tables of one variant"),
        ("--split", args.split, "the variants are measured on all ranks"),
        ("--min-bw", args.least_busbw is not None, "it is about a table of one variant"),
        ("-N/--run_cycles", args.run_cycles != 1, "its passes are set by --passes"),
        ("-M/--memory 1", args.memory, "the variants share their arrays"),
        ("--variant", args.variant, "the run has two"),
    ):
        yield flag, "--interleave", args.variants and used, why
    why = "each launch measures one variant"
    yield "--passes", "--launches", args.passes and args.launches, why
    for flag, used, why in (
        ("-z/--blocking", args.blocking_collectives, "a recorded block cannot wait on the host"),
        ("-I/--per_iter_timing", args.per_iter_timing, "a graph does not time its repetitions"),
        ("-y/--stream_null", args.stream_null, "the null stream cannot be recorded"),
    ):
        yield "-G/--cudagraph", f"{flag} {int(used)}", args.graph and used, why


def _unlike_variants(args: argparse.Namespace) -> Iterator[str]:
    """Yield an error message for each reason why two variants cannot be compared."""
    one, other = args.variants
    if not args.launches:
        one.refuse_process_variables()
        other.refuse_process_variables()
    if one.same(other):
        yield (
            f"--interleave {one.name!r} {other.name!r}: both are the same, so there is nothing to "
            "compare; give two variants that differ"
        )
    for flag, values, own in (
        ("--backend", args.backends, [each.backend for each in args.variants]),
        ("--algorithm", args.algorithms or (), [each.algorithm for each in args.variants]),
    ):
        if None in own and (len(values) > 1 or ALL in values):
            yield (
                f"{flag} {','.join(values)} and --interleave: a variant has one; give it one, or name "
                "it in both variants"
            )
