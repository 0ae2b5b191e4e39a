"""The doctor, which finds faults of a job's nodes: facts are gathered first, and judged afterwards.

- `doctor`, `topo` and `env` are the verbs.
- `reading` fills a tree of JSON types. A source (`sources`) reads facts into it and never judges.
- `job` gathers the trees of a rank, of a node, and of all nodes through MPI.
- `rule` judges. A rule (`rules`) is data: the paths of the facts that it reads, and a pure function of them that
  returns evidence of a fault. So tests use made-up trees, a saved tree is a baseline, and nodes can be compared.
- `hardware` makes components and connections from the facts, or from the files that NCCL writes.
"""
