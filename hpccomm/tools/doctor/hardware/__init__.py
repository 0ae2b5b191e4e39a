"""The hardware of a node and its connections: sockets, NUMA nodes, GPUs and network adapters.

- `facts` makes a node of the facts of `hpccomm.tools.doctor`, `nccl_files` of NCCL's own files.
- `binding` judges where ranks run.
- `words` and `picture` show it; `words` describes a cluster of such nodes, too.

`hpccomm.tools.doctor.topo` calls this package.
"""
