"""A small make-believe cluster: agents that obey the machine's orders, on a clock that a test winds forward."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_elastic.machine import actions as a
from slurm_elastic.machine import events as e
from slurm_elastic.machine.nodes import still_running
from slurm_elastic.machine.policy import Policy
from slurm_elastic.machine.state import State, initial
from slurm_elastic.machine.step import step

BASE = 100
TRAINS, GATE, STANDBY, REGROUPS = "trains", "gate", "standby", "regroups"


def policy(**changes: object) -> Policy:
    values: dict[str, object] = {
        "allowed_nodes": (1, 2, 3, 4, 5),
        "max_nodes": 5,
        "base_nodes": 2,
        "launch_timeout": 30.0,
    }
    return Policy(**(values | changes))  # type: ignore[arg-type]


@dataclass
class FakeJob:
    job_id: int
    nodes: tuple[str, ...]
    token: str = ""
    state: str = "PENDING"
    agent: bool = False  # connected
    incarnation: int = 1
    preempt_time: float | None = None
    end_time: float | None = None


@dataclass
class World:
    """`feed` gives one event to the machine and carries its orders out; `pass_time` lets workers do what they do."""

    policy: Policy
    now: float = 1000.0
    free: list[str] = field(default_factory=list)  # nodes on which a companion can start
    latency: float = 1.0  # seconds from launch to the gate
    state: State = None  # type: ignore[assignment]
    jobs: dict[int, FakeJob] = field(default_factory=dict)
    workers: dict[tuple[int, str], tuple[str, float]] = field(default_factory=dict)  # -> (what, since)
    draining: dict[int, float] = field(default_factory=dict)
    stepped: set[int] = field(default_factory=set)
    log: list[tuple[float, e.Event, tuple[a.Action, ...]]] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    over: str = ""
    crash_after: int = -1  # carry out so many orders, then the supervisor dies
    carried_out: int = 0
    silent: bool = False  # Slurm
    epoch: int = 1
    newest: int = 200
    steps: int = 0
    refuse: bool = False
    elastic: bool = False  # the script uses level 2
    standbys: set[int] = field(default_factory=set)  # launches
    moved_on: dict[tuple[int, str], int] = field(default_factory=dict)  # workers that outlived their launch -> now in
    regroup: a.Regroup | None = None
    stuck: bool = False  # nobody gets through a regroup

    def __post_init__(self) -> None:
        self.state = initial(self.policy)
        nodes = tuple(f"b{i}" for i in range(1, self.policy.base_nodes + 1))
        self.jobs[BASE] = FakeJob(BASE, nodes, state="RUNNING", agent=True)

    # ---- running

    def start(self) -> World:
        self.feed(e.SupervisorStarted(epoch=1, base_job_id=BASE, rejoin_s=10.0))
        self.join(BASE)
        return self

    def feed(self, event: e.Event) -> tuple[a.Action, ...]:
        before = self.state
        self.state, actions = step(before, event, self.now)
        self.log.append((self.now, event, actions))
        check(before, self.state, event, actions, self.now)
        for action in actions:
            if self.carried_out == self.crash_after:
                self.crash_after = -1
                self.restart_supervisor()
                break
            self.carried_out += 1
            self.carry_out(action)
        return actions

    def join(self, job_id: int) -> None:
        job = self.jobs[job_id]
        job.agent = True
        held = tuple(e.StepHeld(generation=g, node=n) for g, n in sorted(self.workers) if n in job.nodes)
        role = "base" if job_id == BASE else "companion"
        self.feed(
            e.AgentJoined(job_id=job_id, role=role, nodes=job.nodes, incarnation=str(job.incarnation), steps=held)
        )

    def restart_supervisor(self) -> None:
        """Replay the journal into a new supervisor; whoever lives reports again."""
        replayed = initial(self.policy)
        for now, event, _ in self.log:
            replayed, _ = step(replayed, event, now)
        assert replayed == self.state
        self.epoch += 1
        self.feed(e.SupervisorStarted(epoch=self.epoch, base_job_id=BASE, rejoin_s=10.0))
        for job in list(self.jobs.values()):
            if job.agent and job.job_id in self.jobs:
                self.join(job.job_id)
        for (generation, node), (what, _) in sorted(self.workers.items()):
            if what in (GATE, STANDBY):
                self.feed(e.NodeReady(generation=generation, node=node))
        if self.elastic and self.state.live is not None and self._all_train(self.state.live.number):
            self.feed(e.GenerationElastic(generation=self.state.live.number))
            self.feed(e.GenerationRegrouped(generation=self.state.live.number, step=self.steps))

    def pass_time(self, seconds: float, tick: float = 1.0) -> None:
        end = self.now + seconds
        while self.now < end and not self.over:
            self.now += tick
            self._workers_move()
            self._slurm_moves()
            if not self.over and int(self.now) % 5 == 0:
                self.poll()
            if not self.over:
                self.feed(e.TimePassed())

    def _workers_move(self) -> None:
        for (generation, node), (what, since) in list(self.workers.items()):
            if self.over or (generation, node) not in self.workers or not self._reachable(node):
                continue
            if what == "starting" and self.now >= since + self.latency:
                self.workers[generation, node] = (STANDBY if generation in self.standbys else GATE, self.now)
                self.feed(e.NodeReady(generation=generation, node=node))
            elif what == REGROUPS:
                self._regroup()
            elif what == TRAINS and self._now_in(generation, node) in self.draining:
                self.end_workers(generation, node, said="drained")
            elif what == TRAINS and self._steps_next(generation := self._now_in(generation, node)):
                self.stepped.add(generation)
                if self.elastic:
                    self.feed(e.GenerationElastic(generation=generation))
                self.steps += 1
                self.feed(e.GenerationStepping(generation=generation, step=self.steps, stall_s=2.0))
                if not self.over:
                    self.feed(e.CheckpointCommitted(generation=generation, step=self.steps))

    def _now_in(self, launch: int, node: str) -> int:
        return self.moved_on.get((launch, node), launch)

    def _steps_next(self, generation: int) -> bool:
        return generation not in self.stepped and self._all_train(generation)

    def _all_train(self, generation: int) -> bool:
        live = self.state.live
        seats = [(m.launch or generation, m.node) for m in self.state.members]
        return (
            live is not None
            and live.number == generation
            and bool(seats)
            and all(
                self.workers.get(seat, ("", 0))[0] == TRAINS and self._now_in(*seat) == generation for seat in seats
            )
        )

    def _regroup(self) -> None:
        """All members get through together, or nobody does: somebody is missing."""
        order = self.regroup
        if order is None or self.stuck:
            return
        seats = [(m.launch, m.node) for m in order.members]
        departing = [(m.launch, m.node) for m in order.departing]
        if not all(seat in self.workers and self._reachable(seat[1]) for seat in seats):
            return
        self.regroup = None
        for seat in seats:
            self.workers[seat] = (TRAINS, self.now)
            self.moved_on[seat] = order.generation
        for launch, node in departing:
            self.end_workers(launch, node, said="drained")
        self.feed(e.GenerationRegrouped(generation=order.generation, step=self.steps))

    def _reachable(self, node: str) -> bool:
        return node not in self.dead and any(node in job.nodes and job.agent for job in self.jobs.values())

    def _slurm_moves(self) -> None:
        for job in list(self.jobs.values()):
            if self.over or self.silent:
                return
            if job.state == "PENDING" and self.free:
                job.nodes = (self.free.pop(0),)
                job.state = "RUNNING"
                self.join(job.job_id)

    def poll(self) -> None:
        if self.silent:
            self.feed(e.SlurmSilent(reason="no controller"))
            return
        self.feed(
            e.JobsSeen(
                jobs=tuple(
                    e.JobRecord(
                        job_id=j.job_id,
                        state=j.state,
                        nodes=j.nodes,
                        token=f"run/{j.token}" if j.token else "",
                        preempt_time=j.preempt_time,
                        end_time=j.end_time,
                    )
                    for j in self.jobs.values()
                )
            )
        )

    # ---- faults

    def end_workers(self, generation: int, node: str, exit_code: int = 0, signal: int = 0, said: str = "") -> None:
        if self.workers.pop((generation, node), None) is not None and self._reachable(node):
            self.feed(e.NodeEnded(generation=generation, node=node, exit_code=exit_code, signal=signal, said=said))

    def lose_power(self, job_id: int) -> None:
        job = self.jobs[job_id]
        job.agent = False
        self.dead |= set(job.nodes)
        self.workers = {k: v for k, v in self.workers.items() if k[1] not in job.nodes}
        self.feed(e.AgentLost(job_id=job_id, reason="no sign of life"))

    def end_job(self, job_id: int) -> None:
        job = self.jobs.pop(job_id, None)
        if job is not None:
            self.free += [n for n in job.nodes if n not in self.dead]
            self.workers = {k: v for k, v in self.workers.items() if k[1] not in job.nodes}

    def companions(self) -> list[int]:
        return [j.job_id for j in self.jobs.values() if j.job_id != BASE and j.state == "RUNNING"]

    # ---- obeying

    def carry_out(self, action: a.Action) -> None:
        match action:
            case a.SubmitCompanion(token=token):
                self._submit(token)
            case a.CancelJob(job_id=job_id) | a.ReleaseAllocation(job_id=job_id):
                assert job_id != BASE
                self.end_job(job_id)
            case a.LaunchWorkers(generation=generation, members=members, standby=standby):
                if standby:
                    self.standbys.add(generation)
                for member in members:
                    if self._reachable(member.node):
                        self.workers.setdefault((generation, member.node), ("starting", self.now))
            case a.OpenGate(generation=generation, members=members):
                for member in members:
                    if (generation, member.node) in self.workers:
                        self.workers[generation, member.node] = (TRAINS, self.now)
            case a.Regroup():
                self.regroup = action
                for member in action.members + action.departing:
                    if (member.launch, member.node) in self.workers:
                        self.workers[member.launch, member.node] = (REGROUPS, self.now)
            case a.DrainWorkers(generation=generation):
                self.draining[generation] = self.now
            case a.KillWorkers(generation=generation, nodes=nodes, alone=alone):
                for g, node in sorted(self.workers):
                    if (g == generation or (g < generation and not alone)) and (not nodes or node in nodes):
                        self.end_workers(g, node, signal=9)
            case a.ProbeNode(node=node):
                if self._reachable(node):
                    self.feed(e.NodeProbed(node=node, ok=True))
            case a.Finish() | a.Stop() | a.GiveUp():
                self.over = type(action).__name__
            case a.RecordTransition():
                pass

    def _submit(self, token: str) -> None:
        found = next((j for j in self.jobs.values() if j.token == token), None)
        if self.refuse:
            self.feed(e.CompanionRefused(token=token, reason="busy"))
            return
        if found is None:
            self.newest += 1
            found = FakeJob(self.newest, (), token=token)
            self.jobs[self.newest] = found
        self.feed(e.CompanionSubmitted(token=token, job_id=found.job_id))

    # ---- looking

    @property
    def orders(self) -> list[a.Action]:
        return [action for _, _, actions in self.log for action in actions]

    def all(self, kind: type) -> list[a.Action]:
        return [action for action in self.orders if isinstance(action, kind)]

    @property
    def transitions(self) -> list[str]:
        return [action.kind for action in self.orders if isinstance(action, a.RecordTransition)]


def check(before: State, after: State, event: e.Event, actions: tuple[a.Action, ...], now: float) -> None:
    """What must hold after every single step."""
    if before.over and not isinstance(event, e.SupervisorStarted):
        assert after is before and not actions
    if isinstance(event, e.SlurmSilent):
        assert not actions
    if isinstance(event, e.TimePassed) and not actions:
        assert after is before
    assert after.last_number >= before.last_number
    for action in actions:
        if isinstance(action, a.CancelJob | a.ReleaseAllocation):
            assert action.job_id != after.base_job_id
        if isinstance(action, a.OpenGate):
            _check_gate(before, after, action, now)
        if isinstance(action, a.Regroup):
            _check_regroup(before, after, event, action, actions)
        if isinstance(action, a.LaunchWorkers):
            for member in action.members:
                allocation = after.allocation(member.job_id)
                assert allocation is not None and member.node in allocation.nodes
    waiting = len(after.submissions) + sum(
        x.contact == "pending" and x.released_at is None and bool(x.token) for x in after.allocations
    )
    if any(isinstance(action, a.SubmitCompanion) for action in actions) and not isinstance(event, e.SupervisorStarted):
        assert waiting <= max(after.policy.max_pending_companions, len(before.submissions))
    assert after.live is None or after.next is None or after.live.number < after.next.number
    if not isinstance(event, e.TimePassed):
        assert step(before, event, now) == (after, actions)


def _check_gate(before: State, after: State, action: a.OpenGate, now: float) -> None:
    assert after.live is not None and after.live.number == action.generation
    assert len(action.members) in after.policy.allowed_nodes
    assert len({m.node for m in action.members}) == len(action.members)
    if before.live is not None and before.live.number != action.generation and before.live.killed_at is None:
        assert not still_running(after, before.live, now)


def _check_regroup(
    before: State, after: State, event: e.Event, action: a.Regroup, actions: tuple[a.Action, ...]
) -> None:
    """One generation, made of workers that are there; who stays is not killed, who is lost is fenced."""
    old = before.live
    assert old is not None
    assert old.elastic
    if isinstance(event, e.SupervisorStarted):
        return  # a repeat
    assert action.generation > before.last_number
    assert len(action.members) in after.policy.allowed_nodes
    seats = {(m.launch, m.node) for m in action.members}
    assert len({node for _, node in seats}) == len(action.members)
    assert not {node for _, node in seats} & {m.node for m in action.departing}
    there = {(old.launch_of(m), m.node) for m in old.everyone}
    standby = {(before.next.number, m.node) for m in before.next.members} if before.next is not None else set()
    assert seats | {(m.launch, m.node) for m in action.departing} <= there | standby
    kills = [x for x in actions if isinstance(x, a.KillWorkers)]
    if after.live is None or after.live.killed_at is not None:
        return
    killed = {(kill.generation, node) for kill in kills for node in kill.nodes}
    assert all(kill.alone and kill.nodes for kill in kills)
    assert not killed & seats
    ended = {end.node for end in after.live.ended} | {x.node for x in old.ended}
    if isinstance(event, e.NodeEnded):
        ended.add(event.node)
    gone = {(old.launch_of(m), m.node) for m in old.members} - seats - {(m.launch, m.node) for m in action.departing}
    assert {seat for seat in gone if seat[1] not in ended} <= killed
