"""What recordings of programs say: lateness, the parts of a step, predictions, advice, and other tools' forms.

`hpccomm.results.recording` has their columns, and `hpccomm.communicator.recording` makes them.
"""
