"""The wait at the gate: a worker that is ready, until the supervisor gives it ranks or sends it away."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from slurm_elastic.rundir import RunDirectory
from slurm_elastic.signals import Notices
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.channel import Channel, GaveUp, RefusedBy

_TELL_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Who waits."""

    run_dir: RunDirectory
    generation: int
    node: str
    local_rank: int
    job_id: int
    heartbeat_s: float
    give_up_after_s: float


class PortHolder:
    """A free port on the address that leads to the supervisor, kept for the process group's store."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._address = ""

    def port_on(self, address: str) -> int:
        if self._socket is None or address != self._address:
            self.release()
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._socket = socket.socket(family)
            self._socket.bind((address, 0))
            self._address = address
        return int(self._socket.getsockname()[1])

    def release(self) -> None:
        """Just before the store binds it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def wait_at_gate(who: Waiting, notices: Notices) -> m.Gate | str:
    """The ranks; or why there will be none. The connection is closed then: the script opens its own."""
    port = PortHolder()
    channel = _channel(who, "gate", who.give_up_after_s, port.port_on)
    channel.start()
    notices.listen(lambda name: channel.inbox.put(m.WorkerNotice(source=name)))
    try:
        while True:
            match channel.inbox.get():
                case m.Gate() as gate if gate.generation == who.generation:
                    return gate
                case m.Fenced(reason=reason) | GaveUp(reason) | RefusedBy(reason):
                    return reason
                case m.WorkerNotice() as heard:
                    channel.send(heard)
                case m.Drain(reason=reason):
                    return f"the generation ends before it began: {reason}"
                case _:
                    continue
    finally:
        notices.listen(None)
        channel.close()
        port.release()


def tell_notice(who: Waiting, name: str) -> None:
    """Report a signal over a connection of its own: for a script that has none."""
    channel = _channel(who, "notice", _TELL_S, lambda address: 0)
    channel.start()
    channel.send(m.WorkerNotice(source=name))
    channel.flush(_TELL_S)
    channel.close()


def _channel(who: Waiting, stage: str, give_up_after_s: float, port_on: Callable[[str], int]) -> Channel:
    def hello(address: str) -> m.WorkerHello:
        return m.WorkerHello(
            generation=who.generation,
            node=who.node,
            local_rank=who.local_rank,
            pid=os.getpid(),
            stage=stage,
            address=address,
            port=port_on(address),
            job_id=who.job_id,
        )

    return Channel(who.run_dir, hello, heartbeat_s=who.heartbeat_s, give_up_after_s=give_up_after_s)


def rank_environment(who: Waiting, gate: m.Gate, run_id: str, max_restarts: int) -> dict[str, str]:
    """What torchrun would have set, and what our library reads."""
    return {
        "RANK": str(gate.global_rank),
        "LOCAL_RANK": str(gate.local_rank),
        "WORLD_SIZE": str(gate.world_size),
        "LOCAL_WORLD_SIZE": str(gate.local_world_size),
        "GROUP_RANK": str(gate.node_rank),
        "GROUP_WORLD_SIZE": str(gate.node_count),
        "ROLE_RANK": str(gate.global_rank),
        "ROLE_WORLD_SIZE": str(gate.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": gate.master_addr,
        "MASTER_PORT": str(gate.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(gate.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "SLURM_ELASTIC_RUN_DIR": str(who.run_dir.path),
        "SLURM_ELASTIC_GENERATION": str(gate.generation),
        "SLURM_ELASTIC_EPOCH": str(gate.epoch),
        "SLURM_ELASTIC_NODE": who.node,
        "SLURM_ELASTIC_JOB_ID": str(who.job_id),
        "SLURM_ELASTIC_STANDBY": "1" if gate.standby else "",
        "SLURM_ELASTIC_RESUME": gate.resume,
        "SLURM_ELASTIC_RESUME_STEP": str(gate.resume_step),
    }
