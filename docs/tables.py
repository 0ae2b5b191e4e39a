"""Makes the tables of the documentation from the code: ``python docs/tables.py`` writes them into the pages.

They are text there, so that a page shows them where Sphinx does not build it. A test makes them anew, and compares.
"""

import collections
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from hpccomm.calls.tuning_table import CASES
from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.contracts.variables import config_fields, known
from hpccomm.dtypes import REDUCIBLE
from hpccomm.reductions import ReduceOp, meaningful
from hpccomm.results.comparison.verdict import MEANINGS
from hpccomm.results.expectations import links as LINKS  # noqa: N812 (the table below has that name)
from hpccomm.results.exports import stored_columns
from hpccomm.results.recording import (
    BLOCKS,
    CALL_COLUMNS,
    STEPS,
    CallSignature,
    RecordedGroup,
    RecordingFacts,
    TrainingBucket,
    TrainingNote,
)
from hpccomm.results.schema import (
    ROWS,
    Column,
    Config,
    DeviceInfo,
    RankInfo,
    Row,
    RunInfo,
    Timing,
    columns,
)
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.settings import VARIABLES
from hpccomm.spelling import table as mpi4py_names
from hpccomm.tools.doctor.rules import RULES
from hpccomm.tools.explain.meanings import TABLE as EXPLAINED
from hpccomm.tools.main import VERBS
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.perf.flags import FLAGS
from hpccomm.tools.perf.patterns import OPS, TYPES

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "benchmarks"))

from contest.promises import FILE as PROMISES  # noqa: E402
from contest.promises import promises  # noqa: E402

sys.path.pop()  # else words such as `auto` would name the programs of that folder

TRANSLATIONS = HERE / "translations.tsv"
"""hpccomm's calls, and how cupyx.distributed and torch.distributed name them."""

MEASURED = HERE / "measured" / "promises.json"
"""A run of ``jobs/bench.sh`` on a machine that had nothing else to do."""

PUBLIC = HERE.parent / "tests" / "package" / "public_names.txt"
"""The public names with their signatures."""

Line = Sequence[str]


def variables() -> Iterator[Line]:
    """Environment variables."""
    yield "variable", "takes", "default", "meaning"
    for variable in VARIABLES:
        default = "" if variable.default is None else _spelled(variable.default)
        yield f"``{variable.name}``", variable.kind.fits, default, variable.meaning


def nccl_config() -> Iterator[Line]:
    """Fields of ncclConfig_t."""
    yield "field", "takes", "NCCL", "variable that overrides it", "meaning"
    variables = {
        each.option: f"``{each.name}``" for each in known().values() if each.status == "live"
    }
    for each in config_fields().values():
        if each.fits:
            variable = variables.get(each.name, "")
            yield f"``{each.name}``", each.fits, each.since, variable, each.meaning


def algorithms() -> Iterator[Line]:
    """Own algorithms of each collective."""
    yield "collective", "own algorithms"
    for collective, named in ALGORITHMS.items():
        yield f"``{collective}``", _listed(named)


def families() -> Iterator[Line]:
    """Algorithms, and the collectives that each does."""
    yield "algorithm", "collectives"
    for name in dict.fromkeys(name for named in ALGORITHMS.values() for name in named):
        yield f"``{name}``", _listed(each for each, named in ALGORITHMS.items() if name in named)


def reductions() -> Iterator[Line]:
    """Reductions, and the dtypes that they take."""
    yield "reduction", "dtypes"
    for op in ReduceOp:
        fits = [dtype.name for dtype in REDUCIBLE if meaningful(op, dtype)]
        every = len(fits) == len(REDUCIBLE)
        shown = "all of them" if every else _listed(fits)
        yield f"``{op.name}``", shown if fits else "values with their indices: see below"


def flags() -> Iterator[Line]:
    """Flags of perf, but for those that take their default alone."""
    yield "flag", "takes", "meaning"
    for heading, group in FLAGS.items():
        if "only at their defaults" in heading:
            continue
        for flag in group:
            names = ", ".join(f"``{name}``" for name in flag.names)
            yield names, f"``{flag.metavar}``", flag.help


def neutral_flags() -> Iterator[Line]:
    """Flags of perf that take their default alone."""
    yield "flag", "takes", "in nccl-tests"
    for heading, group in FLAGS.items():
        if "only at their defaults" in heading:
            for flag in group:
                names = ", ".join(f"``{name}``" for name in flag.names)
                yield names, f"``{flag.default}``", flag.help


def factors() -> Iterator[Line]:
    """Bus bandwidth over algorithm bandwidth."""
    yield "collective", "2 ranks", "8 ranks", "1024 ranks"
    for name, collective in COLLECTIVES.items():
        if collective.what.moves:
            yield (
                f"``{name}``",
                *(f"{collective.what.bus_factor(ranks):.4g}" for ranks in (2, 8, 1024)),
            )


def collectives() -> Iterator[Line]:
    """What each collective is."""
    yield (
        "collective",
        "a rank sends",
        "a rank receives",
        "in place",
        "reduces",
        "uneven call lists",
    )
    for what in DESCRIPTIONS.values():
        sends = "the root: " * what.root_sends + what.sends
        receives = "the root: " * what.root_receives + what.receives
        reduces = "up to the rank" if what.prefix else "yes" if what.reduces else ""
        yield f"``{what.name}``", sends, receives, what.in_place, reduces, what.uneven or ""


def types() -> Iterator[Line]:
    """Names of element types and reductions on perf's command line."""
    yield "flag", "names"
    yield "``-d``", _listed(TYPES)
    yield "``-o``", _listed(OPS)


def cases() -> Iterator[Line]:
    """What rows of a tuning table hold for."""
    yield "case", "holds for"
    for name, meaning in CASES.items():
        yield f"``{name}``", meaning


def promised() -> Iterator[Line]:
    """Promises of speed, and what the stored run measured: see benchmarks/promises.toml."""
    run = json.loads(MEASURED.read_text("utf-8")) if MEASURED.is_file() else {"promises": []}
    found = {(one["group"], one["figure"]): one for one in run["promises"]}
    yield "measurement", "figure", "promise", "measured", "verdict"
    for promise in promises(PROMISES):
        one = found.get((promise.group.name, promise.figure), {})
        tries = one.get("tries", ())
        value = f"{tries[-1]['value']:.3g} {promise.group.unit}" if tries else ""
        bound = f"at {promise.kind} {promise.bound:g} {promise.group.unit}"
        kept = "" if not tries else "kept" if promise.kept(tries[-1]["value"]) else "**short**"
        yield promise.group.name, promise.figure, bound, value, kept


def measurements() -> Iterator[Line]:
    """What each group of promises measures."""
    yield "measurement", "figures", "peer"
    for group in dict.fromkeys(promise.group for promise in promises(PROMISES)):
        yield group.name, group.what, group.peer


def verbs() -> Iterator[Line]:
    """Verbs of the command line, by what people want."""
    yield "to", "command", "does"
    for verb in VERBS.values():
        yield verb.group, f"``hpccomm {verb.name}``", verb.summary


def csv_columns() -> Iterator[Line]:
    """Columns of the CSV that perf and export write."""
    yield "column", "unit", "meaning"
    for column in stored_columns():
        yield f"``{column.name}``", column.unit, column.meaning


def verdicts() -> Iterator[Line]:
    """Verdicts of compare, the worst first."""
    yield "verdict", "meaning"
    for verdict, meaning in MEANINGS.items():
        yield f"``{verdict}``", meaning


def links() -> Iterator[Line]:
    """Links, what they carry, and what was published."""
    yield "link", "GB/s in one direction", "published bus bandwidths"
    for link in LINKS().values():
        left = f", {link.data_rate:.3g} of data" if link.payload < 1 else ""
        published = "; ".join(
            f"{each.collective} {each.busbw:g}, {each.where}"
            + (f", {each.ports} ports a node" if each.ports > 1 else "")
            + f" (`{each.source} <{each.url}>`__)"
            for each in link.published
        )
        rate = f"{link.rate:g}{left} (`{link.source} <{link.url}>`__)"
        yield f"``{link.name}``: {link.what}", rate, published


def _stored(columns: Sequence[Column]) -> Iterator[Line]:
    yield "name", "type", "unit", "meaning"
    for column in columns:
        yield f"``{column.name}``", f"``{column.kind}``", column.unit, column.meaning


STORED = {
    "run_facts": columns(RunInfo),
    "config": columns(Config),
    "ranks": columns(RankInfo),
    "run_devices": columns(DeviceInfo),
    "rows": columns(Row),
    "timings": columns(Timing),
    "row_locations": ROWS.location,
    "recording_facts": columns(RecordingFacts),
    "recorded_groups": columns(RecordedGroup),
    "signatures": columns(CallSignature),
    "blocks": (*BLOCKS.own, *BLOCKS.location),
    "calls": CALL_COLUMNS,
    "training_steps": (*STEPS.own, *STEPS.location),
    "training_buckets": columns(TrainingBucket),
    "training_notes": columns(TrainingNote),
}
"""Tables of what a results file holds."""


def meanings() -> Iterator[Line]:
    """Errors and exit statuses of hpccomm, and what it passes on of MPI."""
    yield "message", "means", "usual causes", "what to do"
    for each in EXPLAINED:
        if each.causes:
            causes, remedies = (
                " ".join(text).replace("`", "``") for text in (each.causes, each.remedies)
            )
            yield f"``{each.name}``", each.meaning, causes, remedies


def messages() -> Iterator[Line]:
    """What launchers, libraries, batch systems, drivers and the kernel say."""
    yield "message", "kind", "means", "what to do"
    for each in EXPLAINED:
        if not each.causes and each.remedies:
            meaning, remedies = (
                re.sub(r"([\\`*_|])", r"\\\1", text)
                for text in (each.meaning, "; ".join(each.remedies))
            )
            yield f"``{each.name}`` ({each.component})", each.kind, meaning, remedies


def checks() -> Iterator[Line]:
    """Rules of the doctor."""
    yield "check", "asks", "a fault is", "what to do"
    for rule in RULES:
        remedy = rule.remedy.replace("*", "\\*")
        yield f"``{rule.id}``", rule.question, f"``{rule.severity}``", remedy


def mpi4py(section: str) -> Iterator[Line]:
    """Names of mpi4py, and what hpccomm has for them."""
    yield "mpi4py", "hpccomm", "what differs"
    for row in mpi4py_names():
        if row["section"] == section:
            yield _listed(row["mpi4py"].split()), row["hpccomm"], row["differs"]


def api() -> Iterator[Line]:
    """Public classes and functions in the order of their page, with what each is."""
    yield "name", "what it is"
    public = PUBLIC.read_text("utf-8").splitlines()
    page = (HERE / "reference" / "api.rst").read_text("utf-8")
    for name in re.findall(
        r"^\.\. auto(?!data|module)\w+:: (?:hpccomm\.)?([\w.]+)$", page, re.MULTILINE
    ):
        for line in public:
            path, call, _ = line.removeprefix("hpccomm.").partition("(")
            within = call and path.startswith(f"{name}.") and name != "Communicator"
            if path == name or within:
                text = inspect.getdoc(pkgutil.resolve_name(f"hpccomm.{path}")) or ""
                yield f"`{path}`", " ".join(text.split("\n\n")[0].split())


def translations() -> Iterator[Line]:
    """Calls of other libraries beside ours. mpi4py's names are those of its own table."""
    theirs = collections.defaultdict[str, list[str]](list)
    for row in mpi4py_names():
        if row["section"] in ("messages", "arrays", "objects", "communicators"):
            theirs[_method(row["hpccomm"])] += row["mpi4py"].split()
    yield "mpi4py", "cupyx.distributed", "torch.distributed", "hpccomm"
    for line in TRANSLATIONS.read_text("utf-8").splitlines()[1:]:
        ours, cupyx, torch = (*line.split("\t"), "", "")[:3]
        names = theirs.get(_method(ours), []) if _method(ours) else []
        short = [
            each for each in names if not each.endswith("_init") and not _blocking(each, names)
        ]
        yield *map(_listed, (short, cupyx.split(), torch.split())), ours


def _blocking(name: str, names: Sequence[str]) -> bool:
    """Return whether `names` has the blocking form of an asynchronous call."""
    return name[0] in "Ii" and bool({name[1:], name[1:].capitalize()} & {*names})


def _method(code: str) -> str:
    """Return the method of a communicator that a cell names first."""
    named = re.match(r"``(?:with )?comm\.(\w+)", code)
    return named[1] if named else ""


TABLES = (
    {
        make.__name__: make
        for make in (
            variables,
            nccl_config,
            algorithms,
            families,
            reductions,
            flags,
            neutral_flags,
            factors,
            collectives,
            types,
            cases,
            promised,
            measurements,
            verbs,
            csv_columns,
            verdicts,
            links,
            meanings,
            checks,
            messages,
            translations,
            api,
        )
    }
    | {name: partial(_stored, table) for name, table in STORED.items()}
    | {
        f"mpi4py_{section}": partial(mpi4py, section)
        for section in dict.fromkeys(row["section"] for row in mpi4py_names())
    }
)


WIDTH = 118
"""Columns of a page's text."""

TABLE = re.compile(
    r"^\.\. made by tables\.py: (\w+)\n+(?:\.\. (?:list-)?table::\n(?:(?: {3}.*)?\n)*)?",
    re.MULTILINE,
)
"""A table in a page, after the comment that names it. It ends where a line begins at the margin."""


def made(page: str) -> str:
    """Return the text of a page with its tables made anew."""
    return TABLE.sub(_table, page).rstrip() + "\n"


def _table(found: re.Match[str]) -> str:
    rows = [*TABLES[found[1]]()]
    return f".. made by tables.py: {found[1]}\n\n{_plain(rows) or _listing(rows)}\n"


def _plain(rows: Sequence[Line]) -> str:
    """Write rows as lines, which the text of a page shows as a table; nothing where they are too wide for that."""
    widths = [max(2, *map(len, column)) for column in zip(*rows, strict=True)]
    if sum(widths) + 2 * len(widths) > WIDTH or not all(first for first, *_ in rows):
        return ""
    bar = ["=" * width for width in widths]
    lines = [bar, rows[0], bar, *rows[1:], bar]
    padded = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    return ".. table::\n\n" + "".join(f"   {line}\n" for line in padded)


def _listing(rows: Sequence[Line]) -> str:
    text = ".. list-table::\n   :header-rows: 1\n   :widths: auto\n\n"
    for first, *others in rows:
        text += f"   * - {first}\n" + "".join(f"     - {cell}".rstrip() + "\n" for cell in others)
    return text


def _listed(names: object) -> str:
    return ", ".join(f"``{name}``" for name in names)  # type: ignore[attr-defined]


def _spelled(default: object) -> str:
    if isinstance(default, bool):
        return "1" if default else "0"
    return f"{default:g}" if isinstance(default, float) else str(default)


if __name__ == "__main__":
    for file in HERE.rglob("*.rst"):
        file.write_text(made(file.read_text("utf-8")), "utf-8")
