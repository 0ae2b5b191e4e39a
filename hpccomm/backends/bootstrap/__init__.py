"""How a process finds itself in its job: launcher, MPI, devices, and how it leaves."""
