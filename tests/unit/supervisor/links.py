"""Links without a network: what was sent to them can be read."""

from __future__ import annotations

from collections.abc import Callable

from slurm_elastic.wire import messages as m


class FakeLink:
    def __init__(self, hello: m.AgentHello | m.WorkerHello, heard: float = 0.0) -> None:
        self.hello = hello
        self.heard = heard
        self.sent: list[m.Message] = []
        self.closed = ""
        self.unsafe = 0  # messages whose receipt is held back

    def hold_receipt(self) -> Callable[[], None]:
        self.unsafe += 1

        def safe() -> None:
            self.unsafe -= 1

        return safe

    def send(self, message: m.Message) -> None:
        self.sent.append(message)

    def close(self, reason: str) -> None:
        self.closed = reason


def agent_hello(job_id: int = 7, *, role: str = "companion", nodes: tuple[str, ...] = ("n1",), restart_count: int = 0):
    return m.AgentHello(
        job_id=job_id, role=role, nodes=nodes, incarnation="first", restart_count=restart_count, qos="elastic"
    )


def worker_hello(generation: int = 1, node: str = "n1", local_rank: int = 0, stage: str = "gate"):
    return m.WorkerHello(
        generation=generation,
        node=node,
        local_rank=local_rank,
        pid=100,
        stage=stage,
        address=f"10.0.0.{node[1:]}",
        port=4711,
    )
