"""`Communicator`: groups of documented methods over one core.

- `communicator`, `collectives`, `reductions`, `uneven`, `messages`, `objects`, `memory`, `groups`: the methods. `face`: what these classes share.
- `counts`, `planning`, `windows`: calls that list counts; plans, explanations and batches; one-sided memory.
- `core`: the state of one communicator; how a collective call is carried out. `prepared_calls`: decides calls,
  and finds what was decided before. `call_sink`: what takes calls instead of their being issued.
- `creation`, `making`, `opening`: make a communicator, and the lane of its device arrays.
- `lanes`: carry out calls, by kind of memory.
"""

from hpccomm.communicator.communicator import Communicator

__all__ = ["Communicator"]
