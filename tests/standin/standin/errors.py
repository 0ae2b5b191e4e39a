"""CUDA's errors."""

NOT_READY = 600


class CUDARuntimeError(RuntimeError):
    """What CuPy raises when a function of the CUDA runtime does not return cudaSuccess."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"status {status} of CUDA")
