"""The public class `Communicator`, and what its methods do, as functions over the core of a call (`hpccomm.calls.core`).

- `communicator`: the class, with all methods and their docstrings.
- `uneven`, `packing`: collectives on blocks of different sizes; arrays as they are, and blocks along any axis.
- `messages`, `arrivals`, `objects`: messages of arrays; receives of any sender, tag or size, and probes; Python objects.
- `memory`, `windows`, `turns`: registered memory; one-sided memory; counters, mutexes and turns.
- `planning`: plans, batches and explanations.
- `groups`, `grid`, `halo`: communicators of other ones, and their end; ranks in a mesh or a grid; ghost cells.
- `recording`: every call of the program, in a file.
- `creation`: makes communicators.
"""

from hpccomm.communicator.communicator import Communicator

__all__ = ["Communicator"]
