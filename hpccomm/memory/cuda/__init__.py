"""CUDA through CuPy: device arrays, streams, events and memory, as far as hpccomm needs them.

The typed surface over a library without types. Nothing here communicates, and nothing of CuPy is
imported before a device array, or a communicator that may serve one, is there.
"""
