"""The public class `Communicator`, and the functions that its methods call, over a communicator's core (`calls.core`).

- `communicator`: the class, with all methods and their docstrings.
- `uneven`, `packing`: collectives on blocks of different sizes; calls on strided arrays, and on blocks along any axis.
- `messages`, `arrivals`, `objects`: messages of arrays; probes, and receives of any sender, tag or size; objects.
- `memory`, `windows`, `turns`: registered memory; one-sided memory; counters, mutexes and turns.
- `planning`: plans, batches and explanations.
- `groups`, `grid`, `halo`: communicators made from others, and their end; ranks in a mesh or a grid; ghost cells.
- `recording`: every call of the program, in a file.
- `creation`: makes communicators.
"""

from hpccomm.communicator.communicator import Communicator

__all__ = ["Communicator"]
