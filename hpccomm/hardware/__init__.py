"""What a node is made of, and what connects it: sockets, NUMA nodes, GPUs and network adapters.

It is described from the facts that `hpccomm.doctor` reads, or from a file that NCCL has written.
"""
