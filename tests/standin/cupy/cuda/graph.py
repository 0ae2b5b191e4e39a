"""Captured graphs, as CuPy has them."""

import sys

from standin import graphs, streams


class Graph:
    """What was captured from a stream; it ends with its object."""

    def launch(self, stream=None):
        from cupy.cuda.stream import get_current_stream

        chosen = get_current_stream() if stream is None else stream
        graphs.launch(self.graphExec, streams.find(chosen.ptr))

    def __del__(self, finalizing=sys.is_finalizing):
        if hasattr(self, "graphExec") and not finalizing():
            graphs.destroy(self.graphExec)
