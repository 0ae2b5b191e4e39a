"""The choice of ``auto``: by collective, bytes, dtype and reduction, ranks and nodes.

A `Policy` chooses for the calls of one communicator, by a `Table` of the fastest algorithm from
each size on, as measured. `Tables` finds the table of a communicator: the one of the tuning file
whose `Shape` is the communicator's, else the nearest of the built-in ones. If no table fits,
hpccomm's own algorithms are compared by their estimated times on a described network.

Each choice follows from facts that are equal on all ranks: the required arguments of the call, the
settings that are agreed when the first communicator is made, and facts that are agreed then.
`hpccomm.calls.host` asks it; ``hpccomm tune`` makes tables.
"""

from hpccomm.calls.policy.choosing import AUTO as AUTO
from hpccomm.calls.policy.choosing import IN_ORDER as IN_ORDER
from hpccomm.calls.policy.choosing import NAMES as NAMES
from hpccomm.calls.policy.choosing import NATIVE as NATIVE
from hpccomm.calls.policy.choosing import Policy as Policy
from hpccomm.calls.policy.choosing import algorithm_of as algorithm_of
from hpccomm.calls.policy.choosing import applicable as applicable
from hpccomm.calls.policy.choosing import asked_for as asked_for
from hpccomm.calls.policy.choosing import fastest as fastest
from hpccomm.calls.policy.choosing import names as names
from hpccomm.calls.policy.choosing import rounded_up as rounded_up
from hpccomm.calls.policy.table import CASES as CASES
from hpccomm.calls.policy.table import Pick as Pick
from hpccomm.calls.policy.table import Shape as Shape
from hpccomm.calls.policy.table import Table as Table
from hpccomm.calls.policy.table import TableRow as TableRow
from hpccomm.calls.policy.table import TableRows as TableRows
from hpccomm.calls.policy.tables import Machine as Machine
from hpccomm.calls.policy.tables import Tables as Tables
