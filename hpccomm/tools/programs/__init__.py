"""What recordings of programs say: lateness, the parts of a step, predictions, advice, and a timeline for Perfetto.

`hpccomm.results.recording` has their columns, and `hpccomm.communicator.recording` makes them.
"""
