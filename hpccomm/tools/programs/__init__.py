"""What recordings of programs say: lateness, the parts of a step, predictions and advice.

- `record`, `advise` and `replay` are the verbs.
- `steps` finds the steps of a program, and the parts of their time.
- `model` makes a model of the steps, and predicts it in virtual time. `pricing` gives it the prices of another network.
- `advice` says what costs time, and tries in the model what would help.

`hpccomm.results.recording` has a recording's columns, and `hpccomm.communicator.recording` makes them.
"""
