"""CUDA's errors."""

_TEXTS = {
    1: "cudaErrorInvalidValue: invalid argument",
    2: "cudaErrorMemoryAllocation: out of memory",
    3: "cudaErrorInitializationError: initialization error",
    35: "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
    100: "cudaErrorNoDevice: no CUDA-capable device is detected",
    400: "cudaErrorInvalidResourceHandle: invalid resource handle",
    600: "cudaErrorNotReady: device not ready",
    700: "cudaErrorIllegalAddress: an illegal memory access was encountered",
    719: "cudaErrorLaunchFailure: unspecified launch failure",
    900: "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing",
    901: "cudaErrorStreamCaptureInvalidated: operation failed due to a previous error during capture",
    904: "cudaErrorStreamCaptureUnjoined: capturing stream has unjoined work",
    905: "cudaErrorStreamCaptureIsolation: dependency created on uncaptured work in another stream",
    906: (
        "cudaErrorStreamCaptureImplicit: operation would make the legacy stream depend on a capturing "
        "blocking stream"
    ),
    907: (
        "cudaErrorCapturedEvent: operation not permitted on an event last recorded in a capturing stream"
    ),
}

NOT_READY = 600


class CUDARuntimeError(RuntimeError):
    """What CuPy raises when a function of the CUDA runtime does not return cudaSuccess."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(_TEXTS.get(status, "unrecognized error code: unrecognized error code"))
