"""The choice of ``auto``: by collective, bytes, dtype and reduction, ranks and nodes.

A `Policy` chooses for the calls of one communicator, by a `Table` that has the fastest measured algorithm from
each size on. `Tables` finds the table of a communicator: the table of the tuning file with the communicator's
`Shape`, else the nearest of the built-in tables, ``measured.json``. If no
table fits, hpccomm's own algorithms are compared by their estimated times on a described network.

Each choice follows from facts that are equal on all ranks: the required arguments of the call, and the
settings and facts on which the ranks agree when the first communicator is made.
The dispatches of `hpccomm.calls` ask the policy. ``hpccomm tune`` makes tables, and `read` reads them from its results
file.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpccomm.calls.tuning_table import (
    NATIVE_CASE,
    ORDERED_CASE,
    OWN_CASE,
    REGISTERED_CASE,
    Pick,
    Shape,
    Table,
)
from hpccomm.contracts.signature import Choice, Signature
from hpccomm.errors import ConfigurationError, ResultsError, UsageError, did_you_mean
from hpccomm.reductions import name_of
from hpccomm.schedules.algorithms import ALGORITHMS, KNOWN, Algorithm, Asked, registered
from hpccomm.schedules.algorithms import names as algorithm_names
from hpccomm.settings import DEFAULT_SEGMENT
from hpccomm.topology import Topology

if TYPE_CHECKING:
    from hpccomm.schedules.cost.network import Network
    from hpccomm.schedules.cost.terms import Estimated

logger = logging.getLogger("hpccomm")

NATIVE = "native"
AUTO = "auto"

UNEVEN_BYTES = 1 << 20
"""The bytes for estimates of uneven calls, in which each rank has another number: all ranks must choose alike."""

NAMES = (AUTO, NATIVE, *sorted({name for each in ALGORITHMS.values() for name in each}))
"""Every name of hpccomm's own that ``algorithm=`` takes in some call."""


def names() -> tuple[str, ...]:
    """Return every name that ``algorithm=`` takes in some call, including those of other packages."""
    return (AUTO, NATIVE, *algorithm_names())


IN_ORDER = (
    "contributions are folded in rank order, and the algorithm only moves them and the result"
)


def algorithm_of(call: Signature, choice: Choice) -> Algorithm:
    """Return the algorithm that was chosen for a call; the choice is not native."""
    found: Algorithm = choice.other or ALGORITHMS[call.collective][choice.algorithm]
    return found


def applicable(call: Signature, native: bool = False, shared: bool = False) -> tuple[str, ...]:
    """Return the names of hpccomm's own algorithms that ``algorithm=`` may take for this call.

    Parameters
    ----------
    call : Signature
        The call.
    native : bool
        Whether the backend has its own form of the call. Then ``"native"`` is the first name, unless contributions must
        be folded in rank order.
    shared : bool
        Whether the ranks reach each other's memory.
    """
    algorithms = ALGORITHMS[call.collective].items()
    own = tuple(name for name, each in algorithms if not _misfit(call, each, shared))
    return (NATIVE, *own) if native and not call.deterministic else own


def _misfit(call: Signature, algorithm: Algorithm, shared: bool) -> str:
    """Return why an algorithm does not apply to a call; empty if it does."""
    if algorithm.shared and not shared:
        return "takes ranks that reach each other's memory"
    if algorithm.uniform and not call.uniform:
        return "takes blocks of one size"
    if call.deterministic and algorithm.ordered is None:
        return "has no form that folds contributions in rank order (Algorithm(..., ordered=...))"
    return ""


def asked_for(
    algorithm: Asked,
    setting: str,
    names: tuple[str, ...],
    call: Signature,
    over: str,
    shared: bool = False,
) -> tuple[str, Algorithm | None]:
    """Return the algorithm that a call asks for: its name, and the `Algorithm` if it is not hpccomm's own.

    The name is one of `names`, `AUTO`, or the name of an algorithm of another package or of a function.

    Parameters
    ----------
    algorithm : str, Algorithm, callable or None
        The user's argument. None means the communicator's setting, for calls that have such an algorithm.
    setting : str
        The communicator's setting.
    names : tuple of str
        The names of hpccomm's own algorithms that apply.
    call : Signature
        The call.
    over : str
        The backend in words, for the error.
    shared : bool
        Whether the ranks reach each other's memory.

    Raises
    ------
    UsageError
        If `algorithm` does not apply; the message lists the algorithms that do.
    ConfigurationError
        If the algorithm is another package's and cannot be imported.
    """
    asked, chosen = setting if algorithm is None else algorithm, None
    if not isinstance(asked, str):
        chosen = asked if isinstance(asked, Algorithm) else Algorithm(asked)
        asked = _qualified(chosen.build)
    elif asked == AUTO or asked in names:
        return asked, None
    elif asked in registered()[call.collective]:
        chosen = KNOWN[call.collective][asked]
    misfit = "" if chosen is None else _misfit(call, chosen, shared)
    if chosen is not None and not misfit:
        return asked, chosen
    if algorithm is None:
        return AUTO, None
    # Not looked at for an algorithm that is found but does not fit: another package may fail to be imported.
    others = registered()[call.collective] if chosen is None else ()
    fitting = [x for x in others if not _misfit(call, KNOWN[call.collective][x], shared)]
    advice = f"give one of {', '.join(map(repr, (AUTO, *names, *fitting)))}"
    if chosen is None and asked not in NAMES:
        advice = did_you_mean(asked, (*names, *fitting), advice)
    raise UsageError(
        f"algorithm is {asked!r}, which {misfit and f'{misfit}, and '}does not apply to this {call.name} over {over}; "
        f"{advice}"
    )


def _qualified(build: object) -> str:
    """Return the name of a function that makes schedules, which is equal on all ranks."""
    inner = getattr(build, "func", build)  # of a functools.partial
    name = getattr(inner, "__qualname__", type(inner).__name__)
    return f"{getattr(inner, '__module__', '')}.{name}".lstrip(".")


class Policy(NamedTuple):
    """Chooses for the calls of one communicator. The same on all its ranks.

    Attributes
    ----------
    shape : Shape
        The shape of the communicator.
    table : Table
        The table from which ``"auto"`` chooses.
    source : str
        The source of the table, in words.
    network : callable
        Returns the network of the ranks, on which algorithms are compared if the table does not fit. It is always
        the same.
    """

    shape: Shape
    table: Table
    source: str
    network: Callable[[], "Network"]

    @property
    def shared(self) -> bool:
        """Whether the ranks reach each other's memory."""
        return self.shape.memory != "off" and self.shape.nodes == 1

    def decide(
        self, call: Signature, algorithm: Asked, native: bool = False, setting: str = AUTO
    ) -> Choice:
        """Choose the algorithm of a call on host arrays, with the parameters that the table has for it.

        Parameters
        ----------
        call : Signature
            The call.
        algorithm, setting
            As in `asked_for`.
        native : bool
            Whether the backend has its own form of the call.

        Raises
        ------
        UsageError
            If `algorithm` does not apply; the message lists the algorithms that do.
        """
        names = applicable(call, native, self.shared)
        over = f"{self.shape.backend}{self._apart(call, algorithm)}"
        name, other = asked_for(algorithm, setting, names, call, over, self.shared)
        if name == AUTO:
            return self._automatic(call, names)
        pick = Pick(name)
        if not call.individual:
            pick = self.named(
                call.collective, name, call.nbytes, deterministic=bool(call.deterministic)
            )
        return self._choice(
            call, pick, f"as asked; {IN_ORDER}" if call.deterministic else "as asked", other
        )

    def _choice(
        self,
        call: Signature,
        pick: Pick,
        reason: str,
        other: Algorithm | None = None,
        registered: bool = False,
    ) -> Choice:
        name, segment, channels = pick
        return Choice(
            call.name,
            "host",
            self.shape.backend,
            name,
            segment or None,
            registered,
            reason,
            channels=channels,
            other=other,
        )

    def _on_registered(self, call: Signature, names: tuple[str, ...]) -> Choice | None:
        """Return the choice for registered arrays; None if registration makes no difference, or the table lacks it."""
        if not (call.registered and self.shared and NATIVE in names):
            return None
        row = self.table.find(call.collective, REGISTERED_CASE, call.nbytes)
        if row is None or row.pick.algorithm not in names:
            return None
        known = ALGORITHMS[call.collective].get(row.pick.algorithm)
        if known is None or not (known.shared or known.direct):
            return None  # registration makes no difference to its steps
        why = f"the fastest on registered arrays from {row.start} bytes on by {self.source}"
        return self._choice(call, row.pick, why, registered=True)

    def _apart(self, call: Signature, algorithm: Asked) -> str:
        """Return, as words for an error, why an algorithm that needs shared memory does not apply; else empty."""
        known = None
        if isinstance(algorithm, str):
            known = ALGORITHMS[call.collective].get(algorithm)
        if known is None or self.shared or not known.shared:
            return ""
        if self.shape.nodes > 1:
            return f" on {self.shape.nodes} nodes, each with its own memory"
        return " between ranks that do not all share memory (HPCCOMM_SHARED_MEMORY=off?)"

    def named(
        self, collective: str, algorithm: str, nbytes: int, *, deterministic: bool = False
    ) -> Pick:
        """Return an algorithm that a call names, with the parameters that the table has for it near that size."""
        cases = (ORDERED_CASE,) if deterministic else (NATIVE_CASE, OWN_CASE)
        return self.table.tuned(collective, cases, algorithm, nbytes)

    def _automatic(self, call: Signature, names: tuple[str, ...]) -> Choice:
        native = NATIVE in names
        backend, ranks = self.shape.backend, self.shape.ranks
        if call.deterministic:
            case, why = ORDERED_CASE, f"{IN_ORDER}; "
        elif native:
            case, why = NATIVE_CASE, ""
        else:
            what = f"{call.name}{_what(call)}"
            case, why = OWN_CASE, f"{backend} does not have its own {what} with this meaning; "
        if native and ranks == 1:
            return self._choice(call, Pick(NATIVE), "there is but one rank")
        if call.individual:
            why += "each rank has its own number of bytes, and all must choose alike"
            name = NATIVE if native else fastest(call, names, self.network()).algorithm
            return self._choice(call, Pick(name), why)
        on_registered = self._on_registered(call, names)
        if on_registered is not None:
            return on_registered
        row = self.table.find(call.collective, case, call.nbytes)
        fits = native or self.table.near(self.shape)
        if row is not None and fits:
            chosen, other = row.pick.algorithm, None
            if chosen not in names and chosen not in NAMES:  # an algorithm of another package
                _, other = asked_for(None, chosen, names, call, "", self.shared)
            if chosen in names or other is not None:
                reason = f"{why}the fastest from {row.start} bytes on by {self.source}"
                return self._choice(call, row.pick, reason, other)
        why += f"no table that fits was measured for this (there is {self.source})"
        if native:
            return self._choice(call, Pick(NATIVE), why)
        name, seconds = fastest(call, names, self.network())
        if seconds < math.inf:
            why += (
                f"; of hpccomm's algorithms this one has the shortest estimated time, about "
                f"{seconds * 1e6:.3g} us on the network {self.network().name!r}"
            )
        return self._choice(call, Pick(name), why)


def rounded_up(nbytes: int) -> int:
    """Return the next power of two, which all sizes of a class have in common."""
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


def fastest(call: Signature, names: Sequence[str], network: "Network") -> "Estimated":
    """Return the algorithm that is estimated to be the fastest at the next power of two bytes.

    Local; the same on every rank.

    Parameters
    ----------
    call : Signature
        The call.
    names : sequence of str
        The algorithms to compare.
    network : Network
        The network of the ranks.
    """
    from hpccomm.schedules.cost.terms import ranked  # imported late: few calls need it

    nbytes = UNEVEN_BYTES if call.individual else rounded_up(call.nbytes)
    return ranked(network, call.collective, nbytes, names, DEFAULT_SEGMENT)[0]


def _what(call: Signature) -> str:
    if call.description.sends == "nothing":
        return ""
    if call.op is None:
        return f" of {call.dtype}"
    return f" of {name_of(call.op)} on {call.dtype}"


_BUILT_IN = Path(__file__).parent / "measured.json"


@cache
def documents() -> list[dict[str, Any]]:
    """Return the documents of the tables that come with the package."""
    tables: list[dict[str, Any]] = json.loads(_BUILT_IN.read_text(encoding="utf-8"))
    return tables


@cache
def nearest(shape: Shape) -> Table:
    """Return the built-in table whose shape is nearest. The same for equal shapes.

    These facts count, in this order: one node or several, the backend, the way in which memory is
    shared, the library, and the number of ranks. The processor does not count: a table tells at which size
    one algorithm overtakes another, and that differs less between processors than their speeds do.
    """

    def distance(document: Mapping[str, Any]) -> tuple[float, ...]:
        other = Shape(**document["shape"])
        return (
            (shape.nodes == 1) != (other.nodes == 1),
            shape.backend != other.backend,
            shape.memory != other.memory,
            _vendor(shape.library) != _vendor(other.library),
            abs(math.log2(shape.ranks_per_node / other.ranks_per_node)),
            abs(math.log2(shape.nodes / other.nodes)),
        )

    return Table.of(min(documents(), key=distance))


def _vendor(library: str) -> str:
    """Return the name of a library without its version."""
    return " ".join(word for word in library.split() if not any(map(str.isdigit, word)))


class Machine(NamedTuple):
    """The machine of a job. It is that of rank 0, and so equal on all ranks.

    Attributes
    ----------
    library : str
        The MPI library and its version; empty without one.
    processor : str
        Model of the processor.
    cores : int
        Number of cores of a node.
    """

    library: str
    processor: str
    cores: int


class Tables(NamedTuple):
    """The tables that the communicators of a job choose from.

    Attributes
    ----------
    machine : Machine
        This machine.
    tuned : tuple of Table
        The tables of the tuning file; the last of a shape counts. Empty without a tuning file.
    file : str
        Name of the tuning file.
    links : tuple of str
        The name and the TOML text of the network on which algorithms are compared if no table
        fits; empty for a typical network. It is parsed only when a call needs it.
    """

    machine: Machine
    tuned: tuple[Table, ...] = ()
    file: str = ""
    links: tuple[str, ...] = ()

    def shape(self, backend: str, topology: Topology, memory: str) -> Shape:
        """Return the shape of a communicator.

        Parameters
        ----------
        backend : str
            Name of the backend.
        topology : Topology
            The ranks of each node.
        memory : str
            The way in which plain arrays are reached; see `Shape`.
        """
        return Shape(
            **self.machine._asdict(),
            backend=backend,
            ranks=topology.size,
            nodes=topology.num_nodes,
            ranks_per_node=max(Counter(topology.node_of).values()),
            memory=memory,
        )

    def misfit(self, shape: Shape) -> str:
        """Return why the tuning file has no table for a shape, and what to do, in words; empty if it has one."""
        if not self.tuned or self._fitting(shape):
            return ""
        differences = min((table.shape.differences(shape) for table in self.tuned), key=len)
        return (
            f"tuning file {self.file} does not fit this job, and is left aside: "
            f"{'; '.join(differences)}. auto goes by {self._built_in(shape)[1]}. To use a table of "
            "this job, run `hpccomm tune` under the same mpiexec and settings, or leave the file out"
        )

    def policy(self, shape: Shape) -> Policy:
        """Return the policy of communicators of a shape. The same on all their ranks."""
        network = cache(partial(self._network, shape))
        table = self._fitting(shape)
        if table is not None:
            source = f"tuning file {self.file}, measured on {table.measured}"
            return Policy(shape, table, source, network)
        table, source = self._built_in(shape)
        if self.tuned:
            logger.info(
                "tuning file %s has no table for %s; auto goes by %s", self.file, shape, source
            )
        return Policy(shape, table, source, network)

    def _network(self, shape: Shape) -> "Network":
        """Return the network of the ranks of a shape."""
        from hpccomm.schedules.cost.network import parse, typical

        described = typical()
        if self.links:
            name, text = self.links
            described = parse(text, name, name)
        return described.placed(shape.ranks, shape.ranks_per_node, typical())

    @staticmethod
    def _built_in(shape: Shape) -> tuple[Table, str]:
        """Return the nearest table that comes with the package, and its name in words."""
        table = nearest(shape)
        return table, f"the built-in table for {table.shape}, measured on {table.measured}"

    def _fitting(self, shape: Shape) -> Table | None:
        return next((table for table in reversed(self.tuned) if table.shape == shape), None)


ENTRY = "policy"
"""Name of the entry in the facts of a run of ``hpccomm tune``: a table as JSON (see `Table.document`)."""


def read(path: str) -> tuple[Table, ...]:
    """Return the tables of a results file, oldest first. Local; blocks while it reads the file.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, is not a results file, or has no readable table.
    """
    from hpccomm.results import files  # few jobs have a tuning file

    try:
        with files.opened(Path(path)) as (hdf5, _):
            runs = hdf5[files.RUNS]
            facts = [files.read_record(runs[name]) for name in files.names(runs, "run")]
        tables = tuple(
            _checked(each["entries"][ENTRY]) for each in facts if ENTRY in each["entries"]
        )
    except (ImportError, OSError, ResultsError) as error:
        raise _refused(path, f"cannot be used: {error}") from None
    except files.HDF5_ERRORS as error:
        raise _refused(path, f"is damaged: {files.why(error)}") from error
    if not tables:
        raise _refused(path, "holds no table")
    return tables


def _refused(path: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"tuning file {path!r} (options.tuning_file or HPCCOMM_TUNING_FILE) {why}; "
        "give a file that `hpccomm tune` wrote, or leave it out"
    )


def _checked(entry: Mapping[str, Any]) -> Table:
    """Return the table of an entry, after a check that its collectives and algorithms exist here."""
    table = Table.of(entry)
    for (collective, _), rows in table.rows.items():
        if collective not in KNOWN:
            raise UsageError(f"{collective!r} is not a collective")
        for _, pick in rows:
            if pick.algorithm != NATIVE and pick.algorithm not in KNOWN[collective]:
                raise UsageError(
                    f"{pick.algorithm!r} is not an installed algorithm of {collective}"
                )
            if min(pick.segment, pick.channels) < 0:
                raise UsageError(f"{collective} has a row of less than 0 segments or channels")
    return table
