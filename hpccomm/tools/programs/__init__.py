"""What recordings of programs say: lateness, the parts of a step, predictions and advice.

- `record`, `advise` and `replay` are the verbs.
- `steps` finds the steps of a program, and the parts of their time.
- `model` makes a model of the steps, and predicts it in virtual time. `pricing` gives it the prices of another network.
- `analysis` has what rules read of a recording. The rules of `advice` say what costs time, and try in the model what
  would help; those of `mpi_advice` are for programs of mpi4py, whose calls take the times of `prices`.
- `ear` hears the calls of such programs.

`hpccomm.results.recording` has a recording's columns, and `hpccomm.communicator.recording` makes them.
"""
