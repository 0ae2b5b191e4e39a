"""A machine with GPUs that is none: what the stand-ins for CuPy, NCCL and PyTorch run on.

Device memory is host memory, a stream is a thread that runs what is put on it in order, and ranks
(threads or processes) pass bytes over Unix-domain sockets. Nothing here is faster or more correct
than the real thing; it is stricter, so that a program that breaks CUDA's or NCCL's rules is seen to
(``../README.md`` lists the rules). For tests alone.
"""
