"""Who is connected. Turns what agents and workers say into facts, and fences those whose time is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from slurm_elastic.machine.events import NodeProbed, NoticeReceived
from slurm_elastic.supervisor.agents import Agents
from slurm_elastic.supervisor.course import Course
from slurm_elastic.supervisor.regroups import Regroups
from slurm_elastic.supervisor.workers import Workers, place_of
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.server import Link

log = logging.getLogger(__name__)

STOPPED_S = 3.0  # a pause of our own ticking beyond this means that we were stopped, not that others are silent


class Desk(Protocol):
    """Where the parts of training go that are not about membership."""

    @property
    def regroups(self) -> Regroups: ...

    def worker_joined(self, hello: m.WorkerHello) -> Iterable[m.Message]:
        """What this worker must be told at once: its gate, its new seat, a drain that is going on, or nothing."""
        ...

    def steps(self, link: Link, told: m.Steps) -> None: ...

    def saved(self, link: Link, saved: m.Saved) -> None: ...

    def save_failed(self, failed: m.SaveFailed) -> None: ...

    def stayed(self, stayed: m.Stayed) -> None: ...

    def warned(self, who: str, text: str) -> None: ...


@dataclass(slots=True)
class Roster:
    """The wire's handler. `poke` asks for Slurm's view soon: something happened that it may explain."""

    course: Course
    agents: Agents
    workers: Workers
    desk: Desk
    poke: Callable[[], None]
    heartbeat_s: float
    _ticked: float = 0.0
    _amnesty: float = 0.0  # silence before this (monotonic) does not count

    # ---- wire.server.Handler

    def connected(self, link: Link, hello: m.AgentHello | m.WorkerHello) -> m.Welcome | m.Refused:
        if isinstance(hello, m.AgentHello):
            refusal = self._why_ghost(hello) or self.agents.joined(link, hello)
            if refusal:
                return m.Refused(reason=refusal)
            if hello.notice_source:
                self.poke()
            self._soon(lambda: self.agents.deliver_held(link, link.heard))
        else:
            self._worker_connected(link, hello)
        state = self.course.state
        return m.Welcome(epoch=self.course.epoch, generation=state.generation, heartbeat_s=self.heartbeat_s)

    def received(self, link: Link, message: m.AnyMessage) -> None:
        match message:
            case m.Beat():
                pass  # `link.heard` has moved, that is all
            case m.AgentNotice() if isinstance(link.hello, m.AgentHello):
                self.course.post(
                    NoticeReceived(job_id=link.hello.job_id, source=message.source, deadline=message.deadline)
                )
                self.poke()
            case m.StepEnded():
                self.workers.step_ended(message)
                if message.exit_code or message.signal:
                    self.poke()
            case m.ProbeAnswer():
                self.course.post(NodeProbed(node=message.node, ok=message.ok, detail=message.detail))
            case m.Steps():
                if self._may_write(link, message.generation):
                    self.desk.steps(link, message)
            case m.Saved():
                self._saved(link, message)
            case m.SaveFailed():
                self.desk.save_failed(message)
            case m.Leaving():
                self.workers.leaving(link, message.why)
            case m.Stumbled() | m.Regrouped() | m.RegroupFailed():
                self._regroups(link, message)
            case m.Stayed():
                self.desk.stayed(message)
            case m.Warned():
                self.desk.warned(_name(link), message.text)
            case m.WorkerNotice():
                log.info("notice worker=%s source=%s: asking Slurm", _name(link), message.source)
                self.poke()
            case _:
                log.warning("unexpected message peer=%s type=%s", _name(link), type(message).__name__)

    def closed(self, link: Link, reason: str) -> None:
        log.info("link closed peer=%s reason=%s", _name(link), reason)
        if isinstance(link.hello, m.AgentHello):
            self.agents.closed(link)
        else:
            self.workers.closed(link)
            self.desk.regroups.closed()

    # ---- once a second

    def tick(self, now: float) -> None:
        """Report who is silent for too long (`now`: monotonic seconds).

        When we were stopped ourselves (suspended, swapped out, debugger), everybody gets a fresh start: their
        messages lie unread in our sockets.
        """
        if self._ticked == 0.0 or now - self._ticked > STOPPED_S:
            self._amnesty = now
        self._ticked = now
        self.agents.expire(now, self._amnesty)
        self.workers.expire(now, self._amnesty)

    # ---- inside

    def _why_ghost(self, hello: m.AgentHello) -> str:
        """Why this agent belongs to a start of the base job that is over, "" if it does not."""
        ours = (self.course.base_job_id, self.course.restart_count)
        if hello.role == "base" and (hello.job_id, hello.restart_count) != ours:
            return f"the base job is {ours[0]} (restart {ours[1]}), not {hello.job_id} ({hello.restart_count})"
        return ""

    def _worker_connected(self, link: Link, hello: m.WorkerHello) -> None:
        over = self._why_over(hello)
        if over:
            log.warning("fenced worker=%s reason=%s", _name(link), over)
            self._soon(lambda: link.send(m.Fenced(generation=hello.generation, reason=over)))
            return
        if hello.stage == "notice":
            return
        launch, _ = place_of(hello)
        self.workers.joined(link, hello, "standby" if self.course.is_standby(launch) else "gate")
        for answer in tuple(self.desk.worker_joined(hello)):
            self._soon(partial(link.send, answer))

    def _why_over(self, hello: m.WorkerHello) -> str:
        """Why this worker may not take part, "" if it may."""
        if self.course.state.over:
            return "the run is over"
        launch, node = place_of(hello)
        generation = self.course.expected(launch, node)
        if generation is None:
            return f"generation {launch} is over on {node}; {self.course.state.generation} is the current one"
        if self.workers.is_fenced(launch, node):
            return f"generation {launch} was ended on {node}"
        if all(member.node != node for member in generation.everyone):
            return f"{node} is no member of generation {generation.number}"
        return ""

    def _may_write(self, link: Link, generation: int) -> bool:
        """Only the current generation writes, and none of its workers that were fenced."""
        live = self.course.state.live
        if live is None or not self._is_in_live(link):
            return False
        return self.desk.regroups.takes(generation) if live.live else generation == live.number

    def _may_save(self, link: Link, generation: int) -> bool:
        """A save that was begun before a regroup may end after it."""
        live = self.course.state.live
        if live is None or not self._is_in_live(link):
            return False
        return live.before <= generation <= live.number if live.live else generation == live.number

    def _is_in_live(self, link: Link) -> bool:
        """Whether this worker is one of the live generation that were not fenced."""
        hello, live = link.hello, self.course.state.live
        if live is None or not isinstance(hello, m.WorkerHello):
            return False
        return live.has(*place_of(hello)) and not self.workers.is_fenced(*place_of(hello))

    def _regroups(self, link: Link, message: m.Stumbled | m.Regrouped | m.RegroupFailed) -> None:
        if not self._is_in_live(link):
            return
        match message:
            case m.Stumbled():
                self.desk.regroups.stumbled(_name(link), message)
            case m.Regrouped():
                self.desk.regroups.regrouped(link, message)
            case _:
                self.desk.regroups.failed(_name(link), message)

    def _saved(self, link: Link, saved: m.Saved) -> None:
        if self._may_save(link, saved.generation):
            self.desk.saved(link, saved)
            return
        reason = f"generation {saved.generation} is over"
        log.warning("save refused worker=%s step=%d reason=%s", _name(link), saved.step, reason)
        link.send(m.Published(step=saved.step, ok=False, reason=reason))

    def _soon(self, call: Callable[[], None]) -> None:
        """After the answer to the hello has been sent: a link carries nothing before it."""
        asyncio.get_running_loop().call_soon(call)


def _name(link: Link) -> str:
    hello = link.hello
    if isinstance(hello, m.AgentHello):
        return f"agent of job {hello.job_id}"
    return f"worker {hello.launch or hello.generation}/{hello.node}/{hello.local_rank}"
