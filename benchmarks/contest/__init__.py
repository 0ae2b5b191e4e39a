"""What the benchmarks of this folder share.

program
    From the command line of a program to the figures that it prints; the ranks that measure together.
jobs
    Commands and jobs that programs start; the machine in words.
promises
    What the documentation promises, and the figures that are held against it.
cases
    One call of a collective: its arrays, what goes in, what must come out.
contenders
    Who makes that call: hpccomm in its ways, mpi4py, a copy of the array.
gloo, ddp
    PyTorch's Gloo and DistributedDataParallel as contenders.
rounds, race
    The turns that contenders take, and all contenders on one case.
links, tables
    What the links between nodes allow; times as text and reStructuredText.
device, verdicts
    What programs on GPUs share, and the lines in which they pass or fail.
"""
