"""Runs programs on device arrays, with messages by a library that does not know streams.

The host and the device take turns: messages begin once the device has made their data, and the
device continues once they have arrived. `hpccomm.dispatch.aware` uses it.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from hpccomm.contracts.device import Piece
from hpccomm.contracts.transport import CALLS, CHANNELS, Request, Steps, Transport
from hpccomm.dispatch.execution.enqueued import DeviceProgram
from hpccomm.dispatch.execution.exchanges import NONE, PATIENT_POLLS, suspected
from hpccomm.dispatch.execution.runner import FIRST_TAG
from hpccomm.memory.cuda.aliases import aliased
from hpccomm.memory.cuda.streams import drop_event, make_event, on_device, ready, record, used
from hpccomm.runtime.lifetime import keep


class Alternating:
    """Runs programs over a transport that takes device memory, one at a time.

    Parameters
    ----------
    transport : Transport
        Moves the messages.
    device : int
        CUDA device of this rank.
    """

    def __init__(self, transport: Transport, device: int) -> None:
        self._transport = transport
        self._device = device
        # Ranks come to the same number of a call, since they run the same calls.
        self._tags = cycle(range(FIRST_TAG, CHANNELS * CALLS, CHANNELS))

    def steps(self, program: DeviceProgram, send: int, recv: int, stream: int) -> Steps:
        """Run `program`, polled. When the steps end, the result is ordered on the stream.

        Parameters
        ----------
        program : DeviceProgram
            This rank's program.
        send, recv : int
            Addresses of the arrays; any number without an array.
        stream : int
            The stream that makes them, and runs local steps.

        Raises
        ------
        BufferMismatch
            If a peer sends a message of another size, or of another call.
        CommunicationError
            If CUDA has failed.
        """
        tag = next(self._tags)
        transport, device = self._transport, self._device
        with used(stream, device):
            at, alive = program.buffers(send, recv)
            event = make_event()
        requests: list[Request] = []
        done = False  # whether all on the stream is done
        try:
            for receives, sends, local in program.turns:
                if receives or sends:
                    if not done:
                        # Also of the received memory: the device may still read its old contents.
                        with on_device(device):
                            record(event, stream)
                        while not ready(event):
                            yield False
                        done = True
                    incoming = program.pieces(receives, at)
                    requests = [
                        transport.irecv(_memory(piece), piece.peer, tag) for piece in incoming
                    ]
                    requests += [
                        transport.isend(_memory(piece), piece.peer, tag)
                        for piece in program.pieces(sends, at)
                    ]
                    yield from self._complete(requests, incoming, tag)
                if local:
                    with used(stream, device):
                        program.carry_out(local, at, stream)
                    done = False
        except BaseException:  # the call failed, or was abandoned
            keep(requests, alive)
            raise
        drop_event(event)

    def _complete(self, requests: list[Request], receives: Sequence[Piece], tag: int) -> Steps:
        """Wait, polled, until all requests are complete. The receives come first."""
        left = [request for request in requests if not request()]
        idle = 0
        suspects = NONE
        while left:
            yield not idle
            before = len(left)
            left = [request for request in left if not request()]
            idle = idle + 1 if len(left) == before else 0
            if idle and idle % PATIENT_POLLS == 0:
                expected = [(piece.peer, piece.data.nbytes) for piece in receives]
                suspects = suspected(self._transport, suspects, expected, requests, left, tag)


def _memory(piece: Piece) -> Any:
    return aliased(piece.data.pointer, piece.data.nbytes)
