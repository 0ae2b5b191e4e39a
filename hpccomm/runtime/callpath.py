"""The path of a synchronous call, written once.

A call takes its turn, gets a number and a record, runs, and is counted. That costs a microsecond, and each function
that a call enters costs a tenth of one. So each form of a call is one function, and all of these are generated from
the same template, as `dataclasses` and `collections.namedtuple` generate theirs. A form says what is its own: how the
call runs, and whether it takes its turn itself, as a plan does.

Values that are equal for all calls of one kind are bound once: the generated functions look nothing
up. `hpccomm.communicator.lanes` and plans make their calls by it.
"""

import linecache
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from functools import cache, update_wrapper
from itertools import repeat
from textwrap import dedent, indent
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeVar
from zlib import crc32

from hpccomm.runtime import failure, operation, recorder, waiting, work
from hpccomm.runtime.recorder import CallRecord

F = TypeVar("F", bound=Callable[..., Any])

Issue = Callable[[tuple[Any, ...], object, float], None]
"""``issue(arguments, keep, timeout)`` carries a call out and waits for it: what it is called with, what must
live meanwhile, and seconds."""

_TURN = """\
free = False
try:
    del turn[0]
    free = True
except KeyError:
    pass
try:
    if free and not ({refused}):
        {site}
        {call}
except (RecursionError, MemoryError) as error:
    # A call may refuse memory before it is made.
    if gate.error is None and (calls.current is not None or error.__class__ is RecursionError):
        calls.closed, calls.current = LEFT, None
    raise
{refusal}
finally:
    if free:
        turn[0] = True
{refuse}
"""
"""Holds the communicator for one call: one thread at a time.

The turn is taken and given back by statements that call nothing, as ``pop`` would: a signal's handler that raises,
such as Ctrl-C's, runs after calls, and nothing would give the turn back. Nor has a call room where recursion is at
its limit. What was under way then is not known to be done, or told of, so the communicator takes no more calls.
"""

LEFT = "was left by a RecursionError or MemoryError in the midst of a call"
"""Why no call is taken after that."""

_REFUSAL = """\
except BaseException as error:
    calls.refused(error, {of_all})
    raise
"""

_SITE = """\
try:
    frame = caller({depth})
    calls.site = frame.f_code, frame.f_lasti
except ValueError:
    calls.site = None
"""

_ENDED = "calls.closed or gate.error is not None"

_BEGIN = """\
calls.sequence = sequence = calls.sequence + 1
{number}
begin = perf_counter()
entry = [origin, sequence, {numbered}, label, {mode}, calls.site, begin, timeout, None, None]
record(entry)
"""
_HOOK = """\
if pre.registered:
    pre(reports.info(entry))
"""
_COUNT = """\
tally.calls += 1
tally.nbytes += nbytes
tally.seconds += elapsed
if elapsed > reports.quiet:
    reports.report(entry, elapsed, {error}, {held})
"""
_CALL = f"""\
{{drain}}
{_BEGIN.rstrip()}
{{before}}
{{current}} = entry
try:
    {indent(_HOOK, "    ").strip()}
    {{compare}}
    {{run}}
except BaseException as error:
    {{fail}}
{{after}}
{_COUNT.format(error="None", held="{held}").rstrip()}
"""
"""The call itself. Messages, unlike collectives, have no number that all ranks count.

Nothing is called between where others see the record and the ``try``: a signal's handler that raises, such
as Ctrl-C's, runs after calls, and the record would stay.
"""

_DRAIN = """\
if queue:
    calls.drain(timeout, queue)
"""
_NUMBER = """\
calls.number = number = calls.number + 1
calls.digest = (calls.digest * 9 ^ fingerprint) & DIGEST
"""
_COMPARE = """\
if number & COMPARED == COMPARED:
    calls.compare(label, entry)
"""
_AFTER = """\
calls.current = None
entry[ENDED] = elapsed = perf_counter() - begin
"""

_MAKE = """\
def make(calls, {bound}):
    gate, turn, under_way, progress = calls.gate, calls.turn, calls.under_way, calls.progress
    messages = progress.messages
    {bind}
    def {name}({arguments}):
        {body}
    return {name}
"""
_BIND = """\
reports, origin, record, queue = calls.reports, calls.origin, calls.record, calls.queue
pre = reports.pre_hooks
nbytes, fingerprint = label.nbytes, label.fingerprint & DIGEST
"""


class Form(NamedTuple):
    """One form of a call: what differs from others, as Python source.

    Attributes
    ----------
    name : str
        Name of the function that carries such calls out.
    arguments : str
        Its parameters.
    bound : str
        What is bound beside the engine of the communicator: parameters of what makes the function.
    run : str
        The statements that carry the call out.
    fail : str
        What is done where they raise `error`.
    mode : str
        How the call waits, by its name in `hpccomm.runtime.recorder`.
    ordered : bool
        Whether all ranks make the call in one order, and compare their calls.
    drain : str
        The statements that wait for the asynchronous collectives before it.
    compare : str
        The statements that compare the calls of the ranks.
    current : str
        Where others see the record of the call under way.
    before, after : str
        Statements before the call runs, and afterwards: these set ``elapsed``.
    held : str
        What keeps its arrays: a recording has their identity.
    planned : bool
        Whether the call takes its turn itself.
    returned : str
        The statement that returns its result, if it has one.
    """

    name: str
    arguments: str
    bound: str
    run: str
    fail: str
    mode: str
    ordered: bool = True
    drain: str = _DRAIN
    compare: str = _COMPARE
    current: str = "calls.current"
    before: str = ""
    after: str = _AFTER
    held: str = "keep"
    planned: bool = False
    returned: str = ""

    def source(self) -> str:
        """Return the source of the function that makes functions of this form."""
        parts = self._asdict() | {"number": _NUMBER, "numbered": "number"}
        if not self.ordered:
            parts |= {"number": "", "numbered": "0", "drain": "", "compare": ""}
        call = _filled(_CALL, **parts) + self.returned
        body = _of_plan(f"{call}return result") if self.planned else call
        return _filled(_MAKE, **parts, bind=_BIND, body=body)


def _filled(template: str, **parts: str) -> str:
    """Return a template with its parts; one that has a line to itself may have several, or none."""

    def of_line(match: re.Match[str]) -> str:
        lines = dedent(parts[match[2]]).strip("\n ")
        return indent(f"{lines}\n", match[1]) if lines else ""

    whole = re.sub(r"^( *)\{(\w+)\}\n", of_line, template, flags=re.MULTILINE)
    return re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], whole)


def _of_plan(call: str) -> str:
    """Return a plan's turn: it is entered by the program, and not by a method of the communicator."""
    site = _filled(_SITE, depth="1")
    refused = f"sink.diverted or {_ENDED}"
    own = {"refused": refused, "site": site, "call": call, "refuse": "return otherwise()"}
    return _filled(_TURN, **own, refusal="")


@cache
def compiled(form: Form, **own: Any) -> Callable[..., Callable[..., Any]]:
    """Return the maker of a form's functions, from the engine and the form's bindings.

    `own` are attributes that the form has otherwise. What is made is as `Issue`, or takes no arguments.
    """
    return _executed(form.name, form._replace(**own).source())["make"]  # type: ignore[no-any-return]


def _executed(name: str, source: str, **names: Any) -> dict[str, Any]:
    """Return the names of a module of that source, to which some are given."""
    names |= {"perf_counter": perf_counter, "repeat": repeat, "LEFT": LEFT}
    for module in (failure, operation, recorder, waiting, work):
        names |= vars(module)
    # Below the package: errors and dumps name the line of the program, and not one of these.
    # The checksum tells the variants of a form apart.
    file = f"{__file__}: {name} {crc32(source.encode()):08x}"
    exec(compile(source, file, "exec"), names)
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    return names


# Functions that are not made for one kind of calls.


def _function(name: str, arguments: str, bind: str, body: str, **names: Any) -> Any:
    lines = indent(f"{bind}\n{body}", "    ")
    return _executed(name, f"def {name}({arguments}):\n{lines}", **names)[name]


def in_turn(method: F, *, of_all: bool = False) -> F:
    """Have a function carried out in its communicator's turn; a decorator.

    The first argument has the `CallEngine` as ``calls``. A method of the communicator calls the function, and the
    program calls that, unless an argument is the ``site``. No argument is one by keyword alone: that takes longer.
    """
    code = method.__code__
    arguments = code.co_varnames[: code.co_argcount]
    every = ", ".join(arguments)
    site = _filled(_SITE, depth="2")
    if "site" in arguments:
        site = f"if site is None:\n{indent(site, '    ')}else:\n    calls.site = site"
    call = f"return method({every})"
    own = {"site": site, "call": call, "refused": _ENDED, "refuse": "calls.refuse(not free)"}
    bind = f"calls = {arguments[0]}.calls\ngate, turn = calls.gate, calls.turn"
    body = _filled(_TURN, **own, refusal=_filled(_REFUSAL, of_all=str(of_all)))
    made = _function(method.__name__, every, bind, body, method=method)
    made.__defaults__ = method.__defaults__
    return update_wrapper(made, method)  # type: ignore[return-value]  # the parameters are the same


def all_in_turn(method: F) -> F:
    """Have a call of all ranks carried out in its communicator's turn, as `in_turn`; a refused one is remembered."""
    return in_turn(method, of_all=True)


one_call: Callable[..., AbstractContextManager[None]] = contextmanager(
    _function(
        "one_call",
        "calls, also_failed=False",
        "gate, turn = calls.gate, calls.turn",
        _filled(
            _TURN,
            refused=f"{_ENDED} and not (also_failed and calls.failure.recoverable)",
            site="calls.site = user_site()",
            call="yield\nreturn",
            refuse="calls.refuse(not free, also_failed)",
            refusal=_filled(_REFUSAL, of_all="False"),
        ),
    )
)
"""``one_call(calls)`` holds the communicator of a `CallEngine` for one call, in a ``with`` statement."""

_ANY_ORDER = _filled(
    _BEGIN,
    number=f"if ordered:\n{indent(_NUMBER, '    ')}",
    numbered="number if ordered else 0",
    mode="mode",
)
_RECORDED = """\
origin, record, reports = calls.origin, calls.record, calls.reports
fingerprint = label.fingerprint & DIGEST
"""

start_record: Callable[..., CallRecord] = _function(
    "start_record",
    "calls, label, mode, timeout, ordered=True",
    _RECORDED,
    f"{_ANY_ORDER}return entry",
)
"""``start_record(calls, label, mode, timeout)`` numbers and records a call that begins, and returns the record."""

start: Callable[..., work.Work] = _function(
    "start",
    "calls, operation, timeout, result",
    f"label, ordered, mode = operation.label, operation.ordered, ASYNC\n{_RECORDED}pre = reports.pre_hooks",
    f"""\
{_ANY_ORDER.rstrip()}
try:
{indent(_HOOK, "    ").rstrip()}
except BaseException as error:
    calls.failed(error, entry, operation.keep)
return calls.put_under_way(operation, entry, result)
""",
)
"""``start(calls, operation, timeout, result)`` starts a polled `Operation` that goes on by itself, and returns its
`Work`."""

ended: Callable[..., None] = _function(
    "ended",
    "calls, entry, tally, error, elapsed, held",
    """\
reports, nbytes, entry[ENDED] = calls.reports, entry[LABEL].nbytes, elapsed
if error is not None:
    entry[ERROR] = in_words(error)
""",
    _COUNT.format(error="error", held="held"),
)
"""``ended(calls, entry, tally, error, elapsed, held)`` counts and reports a call that has ended, by an error or None."""

# The forms of calls on arrays in host memory. That of device arrays is beside their streams.

_ISSUE = "arguments, keep, timeout"

BLOCKED = Form(
    "blocked",
    _ISSUE,
    "label, tally, run",
    run="run(*arguments)",
    fail="calls.failed(error, entry, (arguments, keep))",
    mode="BLOCKING",
)

SPUN = Form(
    "polled",
    _ISSUE,
    "label, tally, start, ordered",
    before="steps = None",
    run="""\
    steps = start(*arguments)
    if not spun(steps):
        drive(calls.together(steps), timeout=timeout, gate=gate, expired=calls.expired(entry))
    """,
    fail="""\
    held = (start, arguments, keep, steps)
    calls.failed(error, entry, held, harmless=harmless_error(error, ordered))
    """,
    mode="POLLED",
)
"""Small arrays come this way: what only a call that waits long needs is made only then."""

STARTED = Form(
    "started",
    "arguments, keep, timeout, result",
    "label, tally, start",
    before="begun, steps = False, None",
    current="moved",
    run="""\
    begun = True
    steps = start(*arguments)
    moved = next(steps, None)
    """,
    fail="""\
    if not begun or not isinstance(error, Exception):
        calls.failed(error, entry, (arguments, keep, steps))
    work = Work(calls, entry, tally, (arguments, keep, steps), None)
    work.end(error)
    return work
    """,
    after="""\
    work = Work(calls, entry, tally, keep, result)
    if moved is not None:
        work.steps = steps
        under_way[work] = messages[work] = entry
        if progress.parked:
            progress.wake()
        return work
    work.over = True
    entry[ENDED] = elapsed = perf_counter() - begin
    """,
    mode="ASYNC",
    ordered=False,
    returned="return work",
)
"""A message that goes on by itself, if it is not done as soon as it has begun."""

PLAN = BLOCKED._replace(
    name="planned",
    arguments="",
    bound="label, tally, run, arguments, keep, timeout, result, sink, otherwise",
    planned=True,
)

EXCHANGED = Form(
    "exchanged",
    "",
    "label, tally, phases, repeated, keep, timeout, result, sink, otherwise",
    run="""\
    repeated.times += 1
    for begin_all, test in phases:
        begin_all()
        for _ in repeat(None, SPINS):
            if test():
                break
        else:
            drive(iter(test, True), timeout=timeout, gate=gate, expired=calls.expired(entry))
    """,
    fail="calls.failed(error, entry, (phases, keep))",
    mode="POLLED",
    ordered=False,
    planned=True,
)


class Diversion(Protocol):
    """Where calls go.

    Attributes
    ----------
    diverted : bool
        Whether something takes calls instead of their being issued: a batch, say.
    """

    diverted: bool


def carrying(
    calls: object,
    carry: Callable[[], object],
    result: Any,
    sink: Diversion,
    otherwise: Callable[[], Any],
) -> Callable[[], Any]:
    """Return the function that carries out a plan by `carry`, which numbers and records it.

    Parameters
    ----------
    calls : CallEngine
        The communicator's.
    carry : callable
        Carries the call out.
    result : object
        What the call returns.
    sink : Diversion
        Where calls go.
    otherwise : callable
        Is called instead when calls are taken elsewhere, or refused.
    """
    return _carrying()(calls, carry, result, sink, otherwise)


@cache
def _carrying() -> Callable[..., Callable[..., Any]]:
    own = {"name": "carried", "arguments": "", "bound": "carry, result, sink, otherwise"}
    source = _filled(_MAKE, bind="", body=_of_plan("carry()\nreturn result"), **own)
    return _executed("carried", source)["make"]  # type: ignore[no-any-return]
