"""The path of one call: its arguments, its algorithm, and its execution.

1. `core` is the communicator's side. It looks for a prepared call under the arguments' key; a known call goes
   straight to `hpccomm.runtime.callpath`.
2. `prepared_calls` finds or makes a prepared call. `arguments` checks the arguments, and makes the `Signature`.
3. `lanes` has one object for each kind of memory, host and device. The lane prepares the call, binds it to its arrays,
   and has the ranks compare the first call of each kind.
4. A dispatch decides, once, how calls of a signature are carried out, and makes the functions that do it:

   - `on_host` handles arrays in host memory. It calls the backend's own collective, if that has the right result, else
     one of hpccomm's algorithms (`algorithms`), over the backend's messages or over memory that the ranks of a
     node share.
   - `on_device` handles device arrays. NCCL, or a CUDA-aware MPI that gets their addresses (`cuda_aware`), carries out
     the calls that it supports.
   - `staged` moves the device arrays of all other calls through pinned host memory, and uses `on_host`.

5. `policy` chooses the algorithm of ``auto``, by a `tuning_table` or the estimated times. `proofs` proves an algorithm
   that is not hpccomm's own before it runs.
6. `program` compiles the schedule of an algorithm for this rank, and `runner` runs it.

`hpccomm.communicator` is built on it.
"""
