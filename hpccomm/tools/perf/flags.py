"""The flags of `hpccomm perf`: nccl-tests' and hpccomm's own.

``flags.toml`` lists them. The parser, the help and the page of documentation are made from it. Each flag names the field
of `Config` or `Options` that takes its value.

`hpccomm.tools.perf.perf` parses them. `hpccomm simulate`, `show` and `slurm` share some.
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
from hpccomm.tools.perf.patterns import HOST, OPS, TYPES

_MOST_OPERATIONS = 1_000_000
_BUDGET = 60.0  # seconds
_PASSES = 10

READERS: Mapping[str, Callable[[str], Any]] = {
    "split": split,
    "variant": variant,
    "name_of_variant": name_of_variant,
    "syncs": flags.one_of(SYNCS, "way to start repetitions"),
    "algorithms": flags.algorithms(policy.NAMES, "is not an algorithm"),
    "ops": flags.some_of({name: name for name in OPS}, "is not a reduction"),
    "types": flags.some_of(
        {name: name for name in TYPES} | {dtype.name: name for name, dtype in TYPES.items()},
        "is not a type",
    ),
}
"""Functions that read the values of flags, by their names in ``flags.toml``. `hpccomm.tools.flags` has the others that
it names."""

WORDS = {
    "backends": ", ".join(backends.choices()),
    "algorithms": ", ".join(policy.NAMES),
    "ops": ", ".join(OPS),
    "types": ", ".join(TYPES),
    "syncs": ", ".join(SYNCS),
    "links": ", ".join(links()),
    "enough": f"{REQUIRED_FRACTION:.0%}",
}
"""Texts that replace the names in braces in ``flags.toml``."""


FLAGS = flags.table(__package__, READERS, WORDS)
"""The flags, by the heading under which the help lists them."""

EXPECTED = tuple(
    flag for flag in FLAGS["hpccomm's own flags"] if flag.field in ("expected", "near")
)
"""The flags of perf and show by which a user says which results to expect."""

DEFAULTS = {
    flag.takes: flag.default and flag.value(flag.default)
    for group in FLAGS.values()
    for flag in group
}
"""The value of each field if its flag is not given."""

CONTRADICTIONS = tomllib.loads(
    resources.files(__package__).joinpath("contradictions.toml").read_text("utf-8")
)["rows"]
"""Flags that contradict each other."""

NOTHING_EXPECTED = next(row["says"] for row in CONTRADICTIONS if row.get("lacks") == ["expected"])
"""The error message for ``--at-least`` without ``--expect``."""

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
"""The arguments of perf."""


def sizes(args: argparse.Namespace) -> Sizes:
    """Return the sizes that ``-b``, ``-e``, ``-i`` and ``-f`` describe.

    Raises
    ------
    UsageError
        If they contradict each other.
    """
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
    values = vars(args) | {"step_factor": swept.factor, "step_bytes": swept.step}
    values |= _derived(args)
    config = Config(**_fields(Config, values))
    result = Options(**_fields(Options, values | {"config": config}))
    for collective in result.collectives:
        result.pairs(collective)  # raises if there is no pair
    if result.arrays == HOST:
        result.refuse_device_flags(f"--arrays is {HOST}; leave one of them out")
    return result


def _derived(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that depend on several flags, or have defaults that do."""
    variants = args.variants and tuple(args.variants)
    series = dict(zip(("base", "new"), (each.name for each in variants or ()), strict=False))
    series |= (args.series or {}) | ({"variant": args.variant} if args.variant else {})
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
    if number * args.aggregated_iterations > _MOST_OPERATIONS:
        yield (
            f"-n/--iters {number} times -m/--agg_iters {args.aggregated_iterations} is more than "
            f"{_MOST_OPERATIONS} operations; lower one of them"
        )

    def given(fields: str) -> bool:
        return any(getattr(args, each) != DEFAULTS[each] for each in fields.split("|"))

    for row in CONTRADICTIONS:
        if all(map(given, row["given"])) and not any(map(given, row.get("lacks", ()))):
            yield row["says"].format_map(vars(args))
    if skip >= number:
        yield (
            f"-K/--per_iter_skip {skip} leaves none of {number} repetitions; give 0 to {number - 1}"
        )
    if args.variants is not None:
        yield from _uncomparable(args)
    files = {"-J/--output_file": args.json, "--csv": args.csv, "--output": args.output}
    seen: dict[str, str] = {}
    for flag, path in files.items():
        if path is not None and (other := seen.setdefault(realpath(path), flag)) != flag:
            yield f"{other} and {flag} {path} name the same file; give two names"


def _uncomparable(args: argparse.Namespace) -> Iterator[str]:
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
        if not all(own) and (len(values) > 1 or ALL in values):
            yield (
                f"{flag} {','.join(values)} and --interleave: each variant has one of them; give {flag} one, "
                "or name one in both variants"
            )
