"""`Communicator`: a table of its methods, which are functions over one core.

- `communicator`: the class. `collectives`, `reductions`, `uneven`, `messages`, `arrivals`, `objects`, `memory`,
  `planning`, `groups`: its methods, which are the functions that take `self`.
- `counts`, `windows`, `mesh`: calls that list counts; one-sided memory; ranks in named dimensions.
- `steps`, `sequences`: what plans are made of. `shrinking`: what is left when ranks are lost.
- `core`: the state of one communicator; how a collective call is carried out. `prepared_calls`: decides calls,
  and finds what was decided before. `call_sink`: what takes calls instead of their being issued.
- `creation`, `making`: make a communicator, and the lane of its device arrays.
- `lanes`: carry out calls, by kind of memory.
"""

from hpccomm.communicator.communicator import Communicator

__all__ = ["Communicator"]
