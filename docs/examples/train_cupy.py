"""The training of ``train_digits.py`` on CuPy arrays: model, images and gradients lie on each rank's GPU.

``mpiexec -n 4 python train_cupy.py``, or with ``--numpy`` on the arrays of the host. It takes CuPy and scikit-learn.
"""

import numpy as np
from train_digits import arguments, train

import hpccomm


def main() -> None:
    """Train as the command line says."""
    parser = arguments("Train a network on handwritten digits, on GPUs.")
    parser.add_argument("--numpy", action="store_true", help="on the arrays of the host")
    request = vars(parser.parse_args())
    with hpccomm.new_comm() as comm:
        if request.pop("numpy"):
            asarray = np.asarray
        else:
            import cupy

            cupy.cuda.Device(comm.device).use()
            asarray = cupy.asarray
        outcome = train(comm, asarray=asarray, tell=print, **request)
        if comm.rank == 0:
            print(f"{comm.size} ranks; rank 0: {outcome.stats}")


if __name__ == "__main__":
    main()
