"""Orders that go to Slurm: submit and cancel companions. In threads of their own; failures come back as facts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from slurm_elastic.errors import SlurmCommandError, SlurmUnknown
from slurm_elastic.machine.actions import CancelJob, SubmitCompanion
from slurm_elastic.machine.events import CompanionRefused, CompanionSubmitted, Event, SlurmSilent
from slurm_elastic.slurm.api import BatchRequest, SlurmClient

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
CANCEL_TRIES = 10

InThread = Callable[..., Awaitable[Any]]


@dataclass(slots=True)
class Companions:
    """`request_for` makes the batch request of one SubmitCompanion; `in_thread` runs a blocking call elsewhere."""

    slurm: SlurmClient
    request_for: Callable[[SubmitCompanion], BatchRequest]
    post: Callable[[Event], None]
    in_thread: InThread
    _busy: set[str] = field(default_factory=set)  # tokens and job ids that are being worked on

    async def submit(self, order: SubmitCompanion) -> None:
        """Until Slurm says yes or no. One token never makes two jobs: the client looks it up before a retry."""
        if order.token in self._busy:
            return
        self._busy.add(order.token)
        try:
            fact = await self._persist(lambda: self._submit_once(order))
        finally:
            self._busy.discard(order.token)
        self.post(fact)

    async def cancel(self, order: CancelJob) -> None:
        """A job that is gone already is success. Gives up after a while: the machine sees the job and orders again."""
        name = f"job {order.job_id}"
        if name in self._busy:
            return
        self._busy.add(name)
        log.info("cancel job=%d reason=%s", order.job_id, order.reason)
        try:
            await self._persist(lambda: self._cancel_once(order.job_id), tries=CANCEL_TRIES)
        finally:
            self._busy.discard(name)

    def _submit_once(self, order: SubmitCompanion) -> Event:
        try:
            job_id = self.slurm.submit(self.request_for(order))
        except SlurmCommandError as refused:
            reason = refused.stderr.strip() or refused.problem
            return CompanionRefused(token=order.token, reason=reason, permanent=not refused.retryable)
        return CompanionSubmitted(token=order.token, job_id=job_id)

    def _cancel_once(self, job_id: int) -> None:
        try:
            self.slurm.cancel(job_id)
        except SlurmCommandError as refused:
            log.warning("cancel refused job=%d problem=%s", job_id, refused.problem)

    async def _persist(self, call: Callable[[], Any], tries: int = 0) -> Any:
        """The call's answer, asked again while Slurm is silent (`tries` times; 0: for ever)."""
        pause_s, tried = FIRST_PAUSE_S, 0
        while True:
            try:
                return await self.in_thread(call)
            except SlurmUnknown as silent:
                self.post(SlurmSilent(reason=silent.problem))
                tried += 1
                if tried == tries:
                    return None
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
