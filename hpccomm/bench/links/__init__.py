"""How fast memory and links are by themselves: ``hpccomm perf memory`` and ``perf copy``.

- `memory` measures the bandwidth of the node's memory.
- `copies` measures copies between the host and devices, and between devices.
- `measuring` runs either of them on all ranks, stores the rates and prints the table.
"""
