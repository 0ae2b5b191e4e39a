"""The dispatch of device arrays over NCCL: its own collectives, else hpccomm's over its messages.

The device lane uses it if `hpccomm.communicator.making` chose it.
"""

from dataclasses import replace

from hpccomm.contracts.choice import Choice
from hpccomm.contracts.device import (
    Begin,
    Begun,
    DeviceBackend,
    DeviceImplementation,
    Grouped,
    Launch,
    Piece,
    Pieces,
    Preparation,
    message_name,
)
from hpccomm.contracts.signature import Signature
from hpccomm.dispatch import policy
from hpccomm.dispatch.device_schedules import DeviceSchedules, ReadySchedule
from hpccomm.errors import UsageError
from hpccomm.memory.cuda import streams
from hpccomm.memory.cuda.memory import copy
from hpccomm.reductions import PremulSum, name_of
from hpccomm.schedules.algorithms import Asked
from hpccomm.settings import Settings
from hpccomm.topology import Topology


class NcclDispatch:
    """The way of device arrays over NCCL.

    Parameters
    ----------
    devices : DeviceBackend
        Moves the data.
    topology : Topology
        Which ranks share a node.
    settings : Settings
        Of the communicator.

    Attributes
    ----------
    name : str
        As in ``comm.backends["cuda"]``.
    """

    def __init__(self, devices: DeviceBackend, topology: Topology, settings: Settings) -> None:
        self.name = devices.name
        self._devices = devices
        self._setting = settings.algorithm
        self._schedules = DeviceSchedules(devices.rank, topology, devices.device, settings.segment)

    def applicable(self, call: Signature) -> tuple[str, ...]:
        """Return the names that ``algorithm=`` may take for calls like `call`.

        NCCL's own first: a name that both have (``"ring"``, ``"tree"``) means NCCL's. Of deterministic calls all are
        hpccomm's.
        """
        return _names(call, self._library(call)[1])

    def decide(self, call: Signature, algorithm: Asked) -> tuple[Choice, DeviceImplementation]:
        """Decide how calls like `call` are carried out. Local; the same on every rank.

        Raises
        ------
        UsageError
            If `algorithm` does not apply, or the reduction is a user's function that does not take
            CuPy arrays.
        """
        asked, pinned = self._library(call)
        choice = self._choose(call, algorithm, pinned)
        if choice.algorithm in pinned:
            return self._natively(call, asked, choice)
        ready = self._schedules.planned(call, choice)
        reason = f"{choice.reason}; over its messages"
        choice = replace(choice, reason=reason, segment=ready.segment, schedule=ready.schedule)
        launch = self._enqueuing(ready) if call.elements else _nothing
        return choice, DeviceImplementation(launch)

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
        name = message_name(receives, sends)
        # Both ends find the same size, so none waits for an empty message.
        receives = [each for each in receives if each.data.elements]
        sends = [each for each in sends if each.data.elements]
        choice = self._choice(name, policy.NATIVE, "NCCL has messages of its own")
        if any(out.data.overlaps(come.data) for out in sends for come in receives):
            return choice, self._from_copies(receives, sends)
        exchange = self._devices.exchange

        def launch(_send: int, _recv: int, stream: int) -> None:
            if receives or sends:
                exchange(receives, sends, stream)

        return choice, _groupable(launch)

    def _from_copies(self, receives: Pieces, sends: Pieces) -> DeviceImplementation:
        """Return the way of messages that overwrite each other's source."""
        device, exchange = self._devices.device, self._devices.exchange
        scratch = self._schedules.scratch
        copied: list[Piece] = []

        def begin(_send: int, _recv: int, stream: int) -> Begun:
            copied.clear()
            alive = []
            with streams.used(stream, device):
                for peer, data in sends:
                    memory = scratch.empty(data.nbytes)
                    alive.append(memory)
                    copy(data.pointer, memory.data.ptr, data.nbytes, stream)
                    copied.append(Piece(peer, data._replace(pointer=memory.data.ptr)))
            return Begun(0, 0, alive)

        def launch(_send: int, _recv: int, stream: int) -> None:
            exchange(receives, copied, stream)

        return _groupable(launch, begin)

    def close(self) -> None:
        """Free NCCL's communicators, and the memory of captured graphs. Local; blocks; idempotent.

        After all that is under way has ended; graphs are not replayed any more.
        """
        self._devices.close()
        self._schedules.scratch.free()

    def _library(self, call: Signature) -> tuple[Signature, tuple[str, ...]]:
        """Return NCCL's part of a call, and the names under which it runs."""
        if call.description.individual:
            # Ranks that are in place must choose like the others: they copy first.
            call = call._replace(in_place=False)
        if call.deterministic:
            return call, ()
        names = self._devices.algorithms(call)
        if not names and isinstance(call.op, PremulSum):
            call = call.summed
            names = self._devices.algorithms(call)
        return call, names

    def _choose(self, call: Signature, algorithm: Asked, pinned: tuple[str, ...]) -> Choice:
        ordered = f"; {policy.IN_ORDER}" if call.deterministic else ""
        names = _names(call, pinned)
        name, other = policy.asked_for(algorithm, self._setting, names, call, self.name)
        if other is not None:
            return self._choice(call.name, name, f"as asked{ordered}", other)
        if name != policy.AUTO:
            whose = "NCCL's" if name in pinned else "hpccomm's"
            return self._choice(call.name, name, f"as asked, {whose} own{ordered}")
        if pinned:
            return self._choice(call.name, pinned[0], "NCCL has its own")
        reason = f"hpccomm's own{ordered}"
        if not call.deterministic:
            of = call.dtype if call.op is None else f"{name_of(call.op)} on {call.dtype}"
            why = f"NCCL does not have its own {call.name} of {of} with this meaning"
            reason = f"hpccomm's own, since {why}"
        name = policy.fastest(call, names, self._schedules.network).algorithm
        return self._choice(call.name, name, reason)

    def _natively(
        self, call: Signature, asked: Signature, choice: Choice
    ) -> tuple[Choice, DeviceImplementation]:
        pinned = self._devices.native(asked, choice.algorithm)
        # NCCL_ALGO holds for NCCL's own choice alone.
        setting = self._devices.reason() if choice.algorithm == policy.NATIVE else pinned.how
        if setting:
            choice = replace(choice, reason=f"{choice.reason}; {setting}")
        if not call.elements:
            return choice, _groupable(_nothing, needs=pinned.needs)
        begin: Begin | None = None
        if asked.op is not call.op:
            begin = self._beginning(self._schedules.beginning(call, wide=False))
        elif call.in_place and not asked.in_place:
            begin = self._beginning(self._schedules.saved(call))
        assert pinned.launch is not None
        found = _groupable(pinned.launch, begin, pinned.needs)
        return choice, found if begin else replace(found, registered=pinned.registered)

    def _beginning(self, begin: Begin) -> Begin:
        device = self._devices.device

        def beginning(send: int, recv: int, stream: int) -> Begun:
            with streams.used(stream, device):
                return begin(send, recv, stream)

        return beginning

    def _enqueuing(self, planned: ReadySchedule) -> Launch:
        device, exchange = self._devices.device, self._devices.exchange
        program, begin = planned.program, planned.begin

        def launch(send: int, recv: int, stream: int) -> None:
            with streams.used(stream, device):
                begun = begin(send, recv, stream)
                program.enqueue(exchange, begun.send, begun.recv, stream)
                begun.end()

        return launch

    def _choice(self, collective: str, algorithm: str, reason: str, other: object = None) -> Choice:
        return Choice(collective, "cuda", self.name, algorithm, None, False, reason, other=other)


def _names(call: Signature, pinned: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*pinned, *policy.applicable(call))))


def _groupable(
    launch: Launch, begin: Begin | None = None, needs: Preparation | None = None
) -> DeviceImplementation:
    """Return the way of a call that can stand in a group, and can stand alone."""
    grouped = Grouped(launch, begin)
    if begin is None:
        return DeviceImplementation(launch, needs=needs, grouped=grouped)

    def alone(send: int, recv: int, stream: int) -> None:
        begun = begin(send, recv, stream)
        launch(begun.send, begun.recv, stream)

    return DeviceImplementation(alone, needs=needs, grouped=grouped)


def _nothing(_send: int, _recv: int, _stream: int) -> None:
    pass
