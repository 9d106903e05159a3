"""What the decision machine is allowed to do, and how patient it is. Durations are seconds, sizes are nodes."""

from __future__ import annotations

import msgspec

from slurm_elastic.config_model import RunConfig
from slurm_elastic.machine.sizes import allowed_sizes, size_policy


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that decide. The lower half has no key in run.yaml: values that fit every site we know."""

    allowed_nodes: tuple[int, ...]  # ascending
    max_nodes: int
    base_nodes: int = 1
    base_trains: bool = True  # false: a master job without training nodes
    companion_nodes: int = 1
    companions: bool = True  # false: one job whose size Slurm picks (layout single), or one MPI world
    workers_per_node: int = 1
    max_pending_companions: int = 4
    graceful_shutdown_timeout: float = 30.0
    scaling_timeout: float = 60.0
    faulty_scale_down_timeout: float = 0.0
    scale_up_snooze_time: float = 60.0
    launch_timeout: float = 120.0
    poll: float = 15.0
    max_restarts: int = 3
    live: bool = False  # workers that can regroup in place do

    rejoin_window: float = 60.0  # a silent companion may come back for so long, then its job is cancelled
    kill_timeout: float = 30.0  # killed workers that are not reported gone by then are fenced and left behind
    probe_timeout: float = 60.0
    order_timeout: float = 120.0  # an unanswered submission or release is ordered again
    stumble_patience: float = 11.0  # workers that stumbled wait for so long for the loss that explains it
    lead: float = 20.0  # with a notice, new workers may warm up for so long before the old ones stop
    short_lead: float = 5.0  # the same when nobody says how much time is left
    longest_snooze: float = 3600.0
    prior_stall: float = 20.0  # what a planned transition costs before one was measured
    prior_lifetime: float = 600.0  # how long a companion lives before any was seen to go
    growth_efficiency: float = 0.9  # speed gained per node added, as a part of one node's speed

    @property
    def min_nodes(self) -> int:
        return self.allowed_nodes[0]

    @property
    def regroup_timeout(self) -> float:
        """From the order to the last worker in its place: a step to its end, the state moved, models built."""
        return max(self.launch_timeout, self.graceful_shutdown_timeout)

    def size_for(self, nodes: int) -> int:
        """The largest allowed size that `nodes` nodes can make; 0 when they are too few."""
        return max((size for size in self.allowed_nodes if size <= nodes), default=0)


def policy_of(config: RunConfig) -> Policy:
    """The policy that run.yaml asks for. Raises nothing: `config.py` has refused settings without any allowed size."""
    elastic = config.elastic
    sizes = allowed_sizes(size_policy(config)) or (elastic.min_nodes,)
    return Policy(
        allowed_nodes=sizes,
        max_nodes=sizes[-1],
        base_nodes=config.base.nodes,
        base_trains=config.base.nodes > 0,
        companion_nodes=elastic.companion_nodes,
        companions=config.run.layout == "companions" and config.run.launcher == "torch",
        workers_per_node=config.workers_per_node,
        max_pending_companions=elastic.max_pending_companions,
        graceful_shutdown_timeout=elastic.graceful_shutdown_timeout,
        scaling_timeout=elastic.scaling_timeout,
        faulty_scale_down_timeout=elastic.faulty_scale_down_timeout,
        scale_up_snooze_time=elastic.scale_up_snooze_time,
        launch_timeout=config.control.launch_timeout,
        poll=config.control.poll,
        max_restarts=config.run.max_restarts,
        live=config.changes_in_place,
        stumble_patience=max(config.control.worker_timeout, config.control.agent_timeout) + 1.0,
    )
