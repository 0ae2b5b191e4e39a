"""The dispatch of device arrays over NCCL: its own collectives, else hpccomm's over its messages.

The device lane uses it if `hpccomm.communicator.making` chose it.
"""

from dataclasses import replace

from hpccomm.contracts.choice import Choice
from hpccomm.contracts.device import (
    Begin,
    Begun,
    DeviceBackend,
    DeviceRoute,
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

    def applicable(self, call: Signature, deterministic: bool) -> tuple[str, ...]:
        """Return the names that ``algorithm=`` may take for calls like `call`.

        NCCL's own first: a name that both have (``"ring"``, ``"tree"``) means NCCL's. With
        `deterministic` all are hpccomm's.
        """
        return _names(call, self._library(call, deterministic)[1], deterministic)

    def decide(self, call: Signature, algorithm: Asked, deterministic: bool) -> DeviceRoute:
        """Decide how calls like `call` are carried out. Local; the same on every rank.

        Raises
        ------
        UsageError
            If `algorithm` does not apply, or the reduction is a user's function that does not take
            CuPy arrays.
        """
        asked, pinned = self._library(call, deterministic)
        chosen = self._choose(call, algorithm, pinned, deterministic)
        name, reason = chosen.algorithm, chosen.reason
        if name in pinned:
            return self._natively(call, asked, name, reason)
        planned = self._schedules.planned(call, chosen, deterministic)
        choice = self._choice(call.name, name, f"{reason}; over its messages", planned.segment)
        choice = replace(choice, schedule=planned.schedule)
        launch = self._enqueuing(planned) if call.elements else _nothing
        return DeviceRoute(choice, launch)

    def message(self, receives: Pieces, sends: Pieces, tag: int) -> DeviceRoute:
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
        choice = self._choice(name, policy.NATIVE, "NCCL has messages of its own", None)
        if any(out.data.overlaps(come.data) for out in sends for come in receives):
            return self._from_copies(choice, receives, sends)
        exchange = self._devices.exchange

        def launch(_send: int, _recv: int, stream: int) -> None:
            if receives or sends:
                exchange(receives, sends, stream)

        return _groupable(choice, launch)

    def _from_copies(self, choice: Choice, receives: Pieces, sends: Pieces) -> DeviceRoute:
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

        return _groupable(choice, launch, begin)

    def close(self) -> None:
        """Free NCCL's communicators, and the memory of captured graphs. Local; blocks; idempotent.

        After all that is under way has ended; graphs are not replayed any more.
        """
        self._devices.close()
        self._schedules.scratch.free()

    def _library(self, call: Signature, deterministic: bool) -> tuple[Signature, tuple[str, ...]]:
        """Return NCCL's part of a call, and the names under which it runs."""
        if call.description.individual:
            # Ranks that are in place must choose like the others: they copy first.
            call = replace(call, in_place=False)
        if deterministic:
            return call, ()
        names = self._devices.algorithms(call)
        if not names and isinstance(call.op, PremulSum):
            call = call.summed
            names = self._devices.algorithms(call)
        return call, names

    def _choose(
        self,
        call: Signature,
        algorithm: Asked,
        pinned: tuple[str, ...],
        deterministic: bool,
    ) -> policy.PolicyChoice:
        ordered = f"; {policy.IN_ORDER}" if deterministic else ""
        names = _names(call, pinned, deterministic)
        conditions = policy.Conditions(deterministic)
        asked = policy.asked_for(algorithm, self._setting, names, call, self.name, conditions)
        if asked.other is not None:
            return asked._replace(reason=f"as asked{ordered}")
        if asked.algorithm != policy.AUTO:
            whose = "NCCL's" if asked.algorithm in pinned else "hpccomm's"
            return asked._replace(reason=f"as asked, {whose} own{ordered}")
        if pinned:
            return policy.PolicyChoice(policy.Pick(pinned[0]), "NCCL has its own")
        reason = f"hpccomm's own{ordered}"
        if not deterministic:
            of = call.dtype if call.op is None else f"{name_of(call.op)} on {call.dtype}"
            why = f"NCCL does not have its own {call.name} of {of} with this meaning"
            reason = f"hpccomm's own, since {why}"
        name = policy.fastest(call, names, self._schedules.network).algorithm
        return policy.PolicyChoice(policy.Pick(name), reason)

    def _natively(self, call: Signature, asked: Signature, name: str, reason: str) -> DeviceRoute:
        pinned = self._devices.native(asked, name)
        # NCCL_ALGO holds for NCCL's own choice alone.
        setting = self._devices.reason() if name == policy.NATIVE else pinned.how
        choice = self._choice(call.name, name, f"{reason}; {setting}" if setting else reason, None)
        if not call.elements:
            return _groupable(choice, _nothing, needs=pinned.needs)
        begin: Begin | None = None
        if asked.op is not call.op:
            begin = self._beginning(self._schedules.beginning(call, wide=False))
        elif call.in_place and not asked.in_place:
            begin = self._beginning(self._schedules.saved(call))
        way = _groupable(choice, pinned.launch, begin, pinned.needs)
        return way if begin is not None else replace(way, registered=pinned.registered)

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

    def _choice(self, collective: str, algorithm: str, reason: str, segment: int | None) -> Choice:
        return Choice(collective, "cuda", self.name, algorithm, segment, False, reason)


def _names(call: Signature, pinned: tuple[str, ...], deterministic: bool) -> tuple[str, ...]:
    own = policy.applicable(call, policy.Conditions(deterministic))
    return tuple(dict.fromkeys((*pinned, *own)))


def _groupable(
    choice: Choice, launch: Launch, begin: Begin | None = None, needs: Preparation | None = None
) -> DeviceRoute:
    """Return the way of a call that can stand in a group, and can stand alone."""
    grouped = Grouped(launch, begin)
    if begin is None:
        return DeviceRoute(choice, launch, needs=needs, grouped=grouped)

    def alone(send: int, recv: int, stream: int) -> None:
        begun = begin(send, recv, stream)
        launch(begun.send, begun.recv, stream)

    return DeviceRoute(choice, alone, needs=needs, grouped=grouped)


def _nothing(_send: int, _recv: int, _stream: int) -> None:
    pass
