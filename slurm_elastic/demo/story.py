"""A day in the life of a cluster, as the demo plays it to a training run. Each act is one function."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_elastic.demo.reference import Reference
from slurm_elastic.demo.stage import GRACE_S, OVER, Stage
from slurm_elastic.observe.summary import Transition

FEW_STEPS = 30  # of undisturbed training between two acts
MEET_S = 120.0
COME_BACK_S = 300.0  # Slurm itself holds a requeued job back for two minutes


@dataclass(slots=True)
class Story:
    """Plays on `stage`, tells by `say`. `reference` is the same training at a fixed size, run while ours waits."""

    stage: Stage
    say: Callable[[str], None]
    reference: Reference
    steps: int
    neighbours: list[int] = field(default_factory=list)
    urgent: list[int] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def play(self) -> None:
        self.start_on_two_nodes()
        self.idle_nodes_appear()
        self.an_urgent_job_preempts()
        self.a_node_loses_power()
        self.the_batch_host_loses_power()
        self.capacity_returns()
        self.finish()

    def start_on_two_nodes(self) -> None:
        self.say("The cluster is busy: four of six nodes belong to others. The run starts on its two base nodes.")
        self.neighbours = self.stage.occupy(4)
        self.stage.cluster.wait_until(self._neighbours_run, MEET_S, "the neighbours' jobs")
        self.stage.submit(self.steps)
        self.stage.wait(lambda now: now.step >= FEW_STEPS, "the first steps", MEET_S)

    def idle_nodes_appear(self) -> None:
        self.say("Three neighbours' jobs end: idle nodes. The run may use them until somebody needs them.")
        known = self._known()
        self.stage.free(self.neighbours[:3])
        del self.neighbours[:3]
        self._tell(self.stage.wait_transition(known, "a growth", MEET_S))
        self.stage.wait(lambda now: now.workers == 5, "five workers", MEET_S)
        self.stage.wait_steps(FEW_STEPS)

    def an_urgent_job_preempts(self) -> None:
        self.say("An urgent job needs a node. Slurm preempts a companion by QOS; the base job is protected.")
        known, asked = self._known(), time.monotonic()
        self.urgent = self.stage.occupy(1, qos="urgent", name="urgent")
        self.stage.cluster.wait_job(self.urgent[0], "RUNNING", MEET_S)
        waited_s = time.monotonic() - asked
        self.say(f"The urgent job runs after {waited_s:.1f} s; the grace time would have been {GRACE_S} s.")
        self._tell(self.stage.wait_transition(known, "the shrink", MEET_S))
        self.stage.wait_steps(FEW_STEPS)

    def a_node_loses_power(self) -> None:
        node = self.stage.members("companion")[-1]
        self.say(f"Node {node} loses power, without a word.")
        known = self._known()
        self.stage.cluster.kill_node(node)
        self.lost.append(node)
        self._tell(self.stage.wait_transition(known, "training without the lost node", MEET_S))
        self.stage.wait_steps(FEW_STEPS)

    def the_batch_host_loses_power(self) -> None:
        node = self.stage.batch_host()
        self.say(f"Node {node} loses power: the one with the base job's own script, and so with the supervisor.")
        known = self._known()
        self.stage.cluster.kill_node(node)
        self.say(
            "Slurm brings a requeued job back after two minutes. Meanwhile the same training runs at a fixed size."
        )
        self.reference.start()
        self.stage.cluster.revive_node(node)
        self.stage.free(self.neighbours)
        self._tell(self.stage.wait_transition(known, "the base job's return", COME_BACK_S))
        self.stage.wait_steps(FEW_STEPS)

    def capacity_returns(self) -> None:
        self.say("The dead node is repaired and the urgent job is done: capacity returns.")
        known = self._known()
        for node in self.lost:
            self.stage.cluster.revive_node(node)
        self.stage.free(self.urgent)
        status = self.stage.status()
        if status is not None and status.workers >= 5:
            return
        self._tell(self.stage.wait_transition(known, "a growth", MEET_S))

    def finish(self) -> None:
        self.say("Nothing more happens to it; it trains to its end.")
        self.stage.wait(lambda now: now.state in OVER, "the end of the run", 600)
        self.reference.wait()

    def _known(self) -> int:
        return len(self.stage.transitions())

    def _neighbours_run(self) -> bool:
        return all(self.stage.cluster.job_state(job) == "RUNNING" for job in self.neighbours)

    def _tell(self, done: Transition) -> None:
        self.say(
            f"{done.kind}: {done.from_workers} -> {done.to_workers} workers, stood still for {done.stall_s:.1f} s, "
            f"{done.steps_lost} steps to do again ({done.reason})"
        )
