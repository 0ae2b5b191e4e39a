"""What `auto` takes: a choice by collective, bytes, dtype and reduction, ranks and nodes.

A `Policy` chooses for the calls of one communicator, by a `Table` of what was measured to be the
fastest from which size on. `Tables` finds the one for a communicator: that of the tuning file whose
`Shape` is the communicator's, else the nearest of those that come with the package. Where no table
fits, hpccomm's own algorithms are compared by their estimated times on a described network.

Whatever is chosen follows from what is equal on all ranks: what the call requires to be, settings
that are agreed when the first communicator is made, and facts that are agreed then.
"""

from hpccomm.dispatch.policy.choosing import (
    AUTO,
    IN_ORDER,
    NAMES,
    NATIVE,
    Decision,
    Policy,
    Taken,
    applicable,
    fastest,
    names,
    taken,
)
from hpccomm.dispatch.policy.table import CASES, Pick, Shape, Table, TableRow, TableRows
from hpccomm.dispatch.policy.tables import Machine, Tables

__all__ = [
    "AUTO",
    "CASES",
    "IN_ORDER",
    "NAMES",
    "NATIVE",
    "Decision",
    "Machine",
    "Pick",
    "Policy",
    "Shape",
    "Table",
    "TableRow",
    "TableRows",
    "Tables",
    "Taken",
    "applicable",
    "fastest",
    "names",
    "taken",
]
