"""The engine of calls: waiting, progress, deadlines, diagnosis of late calls, hooks, exits.

- `engine` carries out the calls of one communicator. `state` holds those calls and the communicator's failure;
  `callpath` has the functions that each call goes through.
- `progress` and `work` run asynchronous calls. `pending` watches calls on streams.
- `waiting` has the loops in which the program waits. `service` is the thread that watches, answers and acts on
  signals. `inquiry`, `verdict`, `deadlock` and `traffic` diagnose late calls.
- `recorder`, `dump` and `reports` record calls. `raised` has the exception that ends the process.
- `answering` answers other ranks' questions; `clocks` compares clocks.

`hpccomm.communicator` and `hpccomm.calls` run calls on it; backends and tools wait by it.
"""
