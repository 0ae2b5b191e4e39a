"""How one call goes: what is asked, which algorithm, how it runs.

1. `core` is the communicator's side. It looks for a prepared call under the arguments' key; a known call goes
   straight to `hpccomm.runtime.callpath`.
2. `prepared_calls` finds or makes one. `arguments` checks the arguments, and makes the `Signature`.
3. `lanes` has one object a kind of memory, host and device. The lane prepares the call, binds it to its arrays,
   and compares it with the other ranks' first.
4. A dispatch decides how calls of a signature are carried out, once, and makes the functions that do it:

   - `on_host` takes arrays in host memory. It calls the backend's own collective, if that has the right result, else
     one of hpccomm's algorithms (`algorithms`), over the backend's messages or over memory that the ranks of a
     node share.
   - `on_device` takes device arrays. NCCL, or a CUDA-aware MPI that gets their addresses (`cuda_aware`), carries out
     what it has.
   - `staged` takes the device arrays of all other calls through pinned host memory, and `on_host`.

5. `policy` chooses the algorithm of ``auto``, by a `tuning_table` or the estimated times. `proofs` proves an algorithm
   that is not hpccomm's own before it runs.
6. `program` compiles the schedule of an algorithm for this rank, and `runner` runs it.
"""
