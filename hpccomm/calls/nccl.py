"""The way of device arrays over NCCL: on streams, without the host.

The device lane uses it if `hpccomm.communicator.making` chose it.
"""

from hpccomm.calls.on_device import DeviceProgram, OnDevice
from hpccomm.calls.policy import NATIVE
from hpccomm.calls.staged import StagedDispatch
from hpccomm.contracts.device import (
    Begun,
    DeviceBackend,
    DeviceImplementation,
    Piece,
    Pieces,
    message_name,
)
from hpccomm.contracts.signature import Choice
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.memory import copy
from hpccomm.memory.cuda.streams import used
from hpccomm.settings import Settings
from hpccomm.topology import Topology


class NcclDispatch(OnDevice):
    """The way of device arrays over NCCL.

    Parameters
    ----------
    devices : DeviceBackend
        Moves the data.
    topology : Topology
        Which ranks share a node.
    settings : Settings
        Of the communicator.
    staged : StagedDispatch
        The way of what NCCL lacks.
    """

    over = "over its messages"

    def __init__(
        self,
        devices: DeviceBackend,
        topology: Topology,
        settings: Settings,
        staged: StagedDispatch,
    ) -> None:
        super().__init__(devices.rank, topology, devices.device, settings, staged, devices)
        self.name = devices.name
        self._devices = devices

    def running(self, program: DeviceProgram) -> DeviceImplementation:
        """Return what puts a program on a stream, so that the host never waits, and a graph can be captured."""
        device, exchange = self._device, self._devices.exchange

        def launch(send: int, recv: int, stream: int) -> None:
            with used(stream, device):
                at, alive = program.buffers(send, recv)
                for receives, sends, local in program.turns:
                    coming, going = program.pieces(receives, at), program.pieces(sends, at)
                    if coming or going:
                        exchange(coming, going, stream)
                    program.carry_out(local, at, stream)
                del alive  # from here on the pool gives it to what comes later on this stream

        return DeviceImplementation(launch)

    def message(
        self, receives: Pieces, sends: Pieces, tag: int
    ) -> tuple[Choice, DeviceImplementation]:
        """Return the way of a user's point-to-point call; its addresses are in the pieces.

        Raises
        ------
        UsageError
            If the tag is not 0.
        """
        if tag:
            raise UsageError(
                f"tag is {tag}, and NCCL's messages have no tags; leave it at 0, or send host arrays"
            )
        reason, name = "NCCL has messages of its own", message_name(receives, sends)
        choice = Choice(name, "cuda", self.name, NATIVE, None, False, reason)
        # Both ends find the same size, so none waits for an empty message.
        coming = [each for each in receives if each.data.elements]
        going = [each for each in sends if each.data.elements]
        exchange, begin = self._devices.exchange, None
        if any(out.data.overlaps(come.data) for out in going for come in coming):
            sources, going = going, []

            def begin(_send: int, _recv: int, stream: int) -> Begun:
                """Copy what the messages that come would overwrite."""
                going[:], alive = [], []
                with used(stream, self._device):
                    for peer, data in sources:
                        memory = self.scratch.empty(data.nbytes)
                        alive.append(memory)
                        copy(data.pointer, memory.data.ptr, data.nbytes, stream)
                        going.append(Piece(peer, data._replace(pointer=memory.data.ptr)))
                return Begun(0, 0, alive)

        def launch(_send: int, _recv: int, stream: int) -> None:
            if coming or going:
                exchange(coming, going, stream)

        return choice, DeviceImplementation(launch, begin=begin, groups=True)

    def close(self) -> None:
        """Free NCCL's communicators, and the memory of captured graphs. Local; blocks; idempotent.

        After all that is under way has ended; graphs are not replayed any more.
        """
        self._devices.close()
        super().close()
