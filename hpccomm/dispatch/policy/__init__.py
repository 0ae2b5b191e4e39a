"""The choice of ``auto``: by collective, bytes, dtype and reduction, ranks and nodes.

A `Policy` chooses for the calls of one communicator, by a `Table` of the fastest algorithm from
each size on, as measured. `Tables` finds the table of a communicator: the one of the tuning file
whose `Shape` is the communicator's, else the nearest of the built-in ones. If no table fits,
hpccomm's own algorithms are compared by their estimated times on a described network.

Each choice follows from facts that are equal on all ranks: the required arguments of the call, the
settings that are agreed when the first communicator is made, and facts that are agreed then.
`hpccomm.dispatch.host` asks it; ``hpccomm tune`` makes tables.
"""

from hpccomm.dispatch.policy.choosing import (
    AUTO,
    IN_ORDER,
    NAMES,
    NATIVE,
    Conditions,
    Policy,
    PolicyChoice,
    applicable,
    asked_for,
    fastest,
    names,
)
from hpccomm.dispatch.policy.table import CASES, Pick, Shape, Table, TableRow, TableRows
from hpccomm.dispatch.policy.tables import Machine, Tables

__all__ = [
    "AUTO",
    "CASES",
    "IN_ORDER",
    "NAMES",
    "NATIVE",
    "Conditions",
    "Machine",
    "Pick",
    "Policy",
    "PolicyChoice",
    "Shape",
    "Table",
    "TableRow",
    "TableRows",
    "Tables",
    "applicable",
    "asked_for",
    "fastest",
    "names",
]
