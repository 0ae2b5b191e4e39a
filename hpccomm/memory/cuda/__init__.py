"""CUDA through CuPy: the device arrays, streams, events and memory that hpccomm needs.

This is a typed surface over a library without types. Nothing here communicates. CuPy is not imported
before a device array, or a communicator that may use one, exists.

The device backends and dispatches, the communicator's device lane and ``perf`` use it.
"""
