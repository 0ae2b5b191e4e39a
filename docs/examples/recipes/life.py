"""Conway's Game of Life on a board whose opposite edges meet: ``mpiexec -n 4 python life.py``."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import hpccomm


def life(comm: hpccomm.Communicator, board: np.ndarray, generations: int) -> np.ndarray:
    """Return the board after some generations, on every rank. A living cell is 1."""
    grid = comm.grid((0, 0), periodic=True)
    block = grid.block(board.shape)
    cells = np.pad(board[block], 1)
    halo, own = grid.halo(cells), cells[1:-1, 1:-1]
    for _ in range(generations):
        halo(cells)
        around = sliding_window_view(cells, (3, 3)).sum((2, 3)) - own
        own[...] = (around == 3) | ((around == 2) & (own == 1))
    whole = np.zeros_like(board)
    whole[block] = own
    return comm.all_reduce(whole)


if __name__ == "__main__":
    with hpccomm.new_comm() as comm:
        board = np.zeros((40, 60), np.uint8)
        board[[0, 1, 2, 2, 2], [1, 2, 0, 1, 2]] = 1  # a glider: it crosses all edges and returns
        board = life(comm, board, 480)
        if comm.rank == 0:
            print("\n".join("".join(" #"[cell] for cell in row) for row in board[:3, :3]))
