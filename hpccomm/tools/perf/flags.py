"""The flags of `hpccomm perf`: nccl-tests' and hpccomm's own.

``flags.toml`` is the one list of them. The parser, the help, the page of documentation and the fields of `Config`
and `Options` are filled from it: each flag names the field that takes its value.

`hpccomm.tools.perf.perf` parses them; `hpccomm simulate`, `show` and `slurm` share some.
"""

import argparse
import dataclasses
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from os.path import realpath
from typing import Any

from hpccomm import backends
from hpccomm.calls import policy
from hpccomm.contracts.collectives import ALIASES
from hpccomm.errors import UsageError
from hpccomm.results.expectations import links
from hpccomm.results.schema import REQUIRED_FRACTION, Config
from hpccomm.tools import flags
from hpccomm.tools.flags import ALL, Flag, FlagGroup
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.perf.isolated import ROUND_TIME, SYNCS
from hpccomm.tools.perf.options import Options, Sizes, name_of_variant, split, variant
from hpccomm.tools.perf.patterns import AUTO, DEVICE, HOST, OPS, TYPES
from hpccomm.units import size

_MOST_OPERATIONS = 1_000_000
_BUDGET = 60.0  # seconds
_PASSES = 10

READERS: Mapping[str, Callable[[str], Any]] = {
    "size": size,
    "split": split,
    "variant": variant,
    "name_of_variant": name_of_variant,
    "arrays": flags.one_of((AUTO, HOST, DEVICE), "kind of memory"),
    "syncs": flags.one_of(SYNCS, "way to start repetitions"),
    "algorithms": flags.algorithms(policy.NAMES, "is not an algorithm"),
    "ops": flags.some_of({name: name for name in OPS}, "is not a reduction"),
    "types": flags.some_of(
        {name: name for name in TYPES} | {dtype.name: name for name, dtype in TYPES.items()},
        "is not a type",
    ),
}
"""What reads values, by its name in the table; `hpccomm.tools.flags` has all others."""

WORDS = {
    "backends": ", ".join(backends.choices()),
    "algorithms": ", ".join(policy.NAMES),
    "ops": ", ".join(OPS),
    "types": ", ".join(TYPES),
    "syncs": ", ".join(SYNCS),
    "links": ", ".join(links()),
    "enough": f"{REQUIRED_FRACTION:.0%}",
}
"""Lists that the table's meanings name."""


def _flag(row: Mapping[str, Any]) -> Flag:
    """Return the flag of a row of the table."""
    if "range" in row:
        read: Callable[[str], Any] = flags.integer(*row["range"])
    elif "only" in row:
        read = flags.only(row["only"], row["why"])
    else:
        read = READERS.get(row["read"]) or getattr(flags, row["read"])
    meaning = row["meaning"].format_map(WORDS)
    return Flag(row["usage"], read, meaning, row.get("field", ""), values=row.get("values", 1))


FLAGS: dict[str, tuple[Flag, ...]] = {
    heading: tuple(map(_flag, rows))
    for heading, rows in tomllib.loads(
        resources.files(__package__).joinpath("flags.toml").read_text("utf-8")
    ).items()
}
"""The flags, by the heading under which the help lists them."""

EXPECTED = tuple(
    flag for flag in FLAGS["hpccomm's own flags"] if flag.field in ("expected", "near")
)
"""Flags of perf and show that name expectations."""

NOTHING_EXPECTED = "--at-least is about what --expect names, which was not given; give both"

ARGUMENTS: tuple[Flag | FlagGroup, ...] = (
    Flag(
        "COLLECTIVE[,COLLECTIVE...]",
        flags.some_of(
            COLLECTIVES | {alias: COLLECTIVES[name] for alias, name in ALIASES.items()},
            "is not a collective",
        ),
        f"{ALL}, or some of {', '.join(COLLECTIVES)}",
        "collectives",
    ),
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
