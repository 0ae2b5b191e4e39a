"""Captured graphs, as CuPy has them."""

import sys

from cupy.cuda import runtime


class Graph:
    """What was captured from a stream; it ends with its object."""

    def launch(self, stream=None):
        from cupy.cuda.stream import get_current_stream

        chosen = get_current_stream() if stream is None else stream
        runtime.graphLaunch(self.graphExec, chosen.ptr)

    def __del__(self, finalizing=sys.is_finalizing):
        if hasattr(self, "graphExec") and not finalizing():
            runtime.graphExecDestroy(self.graphExec)


def from_stream(graph):
    made = Graph.__new__(Graph)
    made.graph = graph
    made.graphExec = runtime.graphInstantiate(graph)
    return made
