"""`Communicator`: a table of its methods, which are functions over one core.

- `communicator`: the class. `collectives`, `reductions`, `uneven`, `messages`, `arrivals`,
  `objects`, `memory`, `planning`, `groups`: its methods, the functions that take `self`.
- `counts`, `windows`: calls that list counts; one-sided memory. `mesh`, `grid`: ranks in named dimensions, or in
  a Cartesian grid. `halo`: ghost cells.
- `core`: the state of one communicator; how a collective call is carried out. `prepared_calls`:
  decides calls, and finds what was decided before. `call_sink`: takes calls instead of issuing
  them.
- `creation`, `making`: make a communicator, and the lane of its device arrays.
- `lanes`: carry out calls, by kind of memory.
"""

from hpccomm.communicator.communicator import Communicator

__all__ = ["Communicator"]
