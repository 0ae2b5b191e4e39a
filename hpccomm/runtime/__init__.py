"""The engine of calls: waiting, progress, deadlines, diagnosis of late calls, hooks, exits.

- `engine` carries out the calls of one communicator, with `state` and failure; `callpath` has the functions that each call goes through.
- `progress` and `work` run asynchronous calls. `pending` watches calls on streams.
- `waiting` holds every wait of the program's. `service` is the thread that looks, answers and acts on
  signals. `inquiry`, `verdict`, `deadlock` and `traffic` diagnose late calls.
- `recorder`, `dump` and `reports` record them. `raised` has the exception that ends the process.
- `answering` answers other ranks' questions; `clocks` compares clocks.

`hpccomm.communicator` runs its calls on it; backends and benchmarks wait by it.
"""
