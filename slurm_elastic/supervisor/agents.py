"""The agents: which are connected, which have gone silent, and how to say something to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slurm_elastic.machine.events import AgentJoined, AgentLost, Event, NoticeReceived
from slurm_elastic.wire import messages as m
from slurm_elastic.wire.server import Link


@dataclass(slots=True)
class AgentSeen:
    """One agent: `link` is None while it is away, `heard` the monotonic time of its last sign of life."""

    hello: m.AgentHello
    link: Link | None
    heard: float
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """An order for an agent that is away for the moment."""

    since: float
    message: m.Message


class Agents:
    """By job id. A closed connection is no loss yet: agents reconnect. `timeout_s` of silence is one."""

    def __init__(self, post: Callable[[Event], None], timeout_s: float) -> None:
        self._post = post
        self._timeout_s = timeout_s
        self._seen: dict[int, AgentSeen] = {}
        self._held: dict[int, list[Held]] = {}

    def joined(self, link: Link, hello: m.AgentHello) -> str:
        """Take an agent in; a reason when it must not be. The newest start of a job wins."""
        known = self._seen.get(hello.job_id)
        if known is not None:
            if known.hello.restart_count > hello.restart_count:
                return f"restart {known.hello.restart_count} of job {hello.job_id} has its own agent"
            if known.link is not None and known.link is not link:
                stale, known.link = known.link, None
                stale.close("the agent connected again")
        self._seen[hello.job_id] = AgentSeen(hello, link, link.heard)
        self._post(
            AgentJoined(
                job_id=hello.job_id,
                role=hello.role,
                nodes=hello.nodes,
                incarnation=hello.incarnation,
                restart_count=hello.restart_count,
                steps=hello.steps,
                qos=hello.qos,
            )
        )
        if hello.notice_source:
            self._post(NoticeReceived(job_id=hello.job_id, source=hello.notice_source, deadline=hello.notice_deadline))
        return ""

    def deliver_held(self, link: Link, now: float) -> None:
        """Hand over what was ordered while the agent was away, if that was only a moment ago."""
        job_id = self._job_of(link)
        for held in self._held.pop(job_id, ()):
            if now - held.since <= self._timeout_s:
                link.send(held.message)

    def closed(self, link: Link) -> None:
        seen = self._seen.get(self._job_of(link))
        if seen is not None and seen.link is link:
            seen.heard = max(seen.heard, link.heard)
            seen.link = None

    def expire(self, now: float, amnesty: float) -> None:
        """Report those that are silent too long. Silence before `amnesty` does not count (we were stopped)."""
        for job_id, seen in self._seen.items():
            if seen.link is not None:
                seen.heard = seen.link.heard
            silent_s = now - max(seen.heard, amnesty)
            if seen.lost or silent_s <= self._timeout_s:
                continue
            seen.lost = True
            self._held.pop(job_id, None)
            stale, seen.link = seen.link, None
            if stale is not None:
                stale.close("no sign of life")
            self._post(AgentLost(job_id=job_id, reason=f"no sign of life for {silent_s:.1f} s"))

    def forget(self, job_id: int) -> None:
        """This job was told to end: its silence is no news any more."""
        seen = self._seen.get(job_id)
        if seen is not None:
            seen.lost = True

    def send(self, job_id: int, message: m.Message, now: float) -> None:
        """To the agent of this job; kept for a moment while it is away."""
        seen = self._seen.get(job_id)
        if seen is not None and seen.link is not None:
            seen.link.send(message)
        elif seen is None or not seen.lost:
            self._held.setdefault(job_id, []).append(Held(now, message))

    def is_there(self, job_id: int) -> bool:
        seen = self._seen.get(job_id)
        return seen is not None and seen.link is not None

    def connected(self, role: str = "") -> list[int]:
        """Job ids of the agents that are connected now, of one role or of all."""
        return [j for j, seen in self._seen.items() if seen.link is not None and role in ("", seen.hello.role)]

    def with_nodes(self, nodes: Iterable[str]) -> list[int]:
        """Job ids whose allocation had any of these nodes when the agent joined; of all when `nodes` is empty."""
        wanted = set(nodes)
        return [job_id for job_id, seen in self._seen.items() if not wanted or wanted & set(seen.hello.nodes)]

    def _job_of(self, link: Link) -> int:
        return link.hello.job_id if isinstance(link.hello, m.AgentHello) else 0
