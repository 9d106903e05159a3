"""`python -m slurm_elastic.agent.keeper`: what a batch script execs. A small parent that outlives its children.

It starts the agent and, in the base job, the supervisor, else a deputy; starts them again when they are killed; passes
notices on to the agent; and ends with the job's exit code once the agent was released. A run that has its DONE marker
is not started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_elastic.agent.death import die_with_parent
from slurm_elastic.errors import ConfigError, RunDirectoryError, SlurmElasticError
from slurm_elastic.rundir import RunDirectory
from slurm_elastic.signals import NOTICES

_USER_MISTAKE = 2  # exit code of a child that cannot work until someone edits something
_SUPERSEDED = 4  # ... of the supervisor of a start whose run goes on elsewhere: this job is a ghost
_WAKE_S = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_STEADY_S = 10.0  # a child that lived this long was well
_HOPELESS_S = 900.0  # of quick deaths in a row
_GIVES_UP = (
    "it failed for a quarter of an hour; this job ends. See the run's logs, and whether its directory can be written "
    "(space, quota, file system); `slurm-elastic submit` goes on from the newest checkpoint"
)
_DEPUTY_PAUSE_S = 30.0
_FAREWELL_S = 20.0  # for the other child to end by itself


def exit_code_of(problem: SlurmElasticError) -> int:
    """What a child that cannot work ends with: a file system that fails may come back, a mistake has to be edited."""
    cause: BaseException | None = problem
    while cause is not None and isinstance(problem, RunDirectoryError | ConfigError):
        if isinstance(cause, OSError):
            return 1
        cause = cause.__cause__
    return problem.exit_code


class Child:
    """One program that is kept running."""

    def __init__(self, name: str, argv: tuple[str, ...], prepare: Callable[[], None]) -> None:
        self.name = name
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.due = 0.0  # when to start it again
        self._argv = argv
        self._prepare = prepare
        self._started = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._failing_since: float | None = None
        self._report: int = -1

    def start(self, now: float) -> None:
        """With a pipe for its verdict as --report-fd. One that cannot be started counts as one that died at once."""
        reading, writing = os.pipe()
        again = ("--again",) if self.starts and self.name == "agent" else ()
        report = ("--report-fd", str(writing)) if self.name == "agent" else ()
        self._started = now
        try:
            self.process = subprocess.Popen(
                (*self._argv, *again, *report),
                stdin=subprocess.DEVNULL,
                pass_fds=(writing,),
                start_new_session=True,
                preexec_fn=self._prepare,  # this process has one thread only
            )
        except OSError as broken:  # no process or memory to be had, or the file system with the program is away
            os.close(reading)
            self._plan_next(now)
            _say(f"the {self.name} cannot be started: {broken.strerror}")
            return
        finally:
            os.close(writing)
        self._report = reading
        self.starts += 1

    def ended(self, now: float) -> tuple[int, bytes] | None:
        """(return code, verdict) once after it has ended; its next start is then planned."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        os.set_blocking(self._report, False)
        try:
            verdict = os.read(self._report, 4096)
        except BlockingIOError:  # a descendant holds the other end
            verdict = b""
        os.close(self._report)
        self.process = None
        self._plan_next(now)
        return code, verdict

    def _plan_next(self, now: float) -> None:
        if now - self._started >= _STEADY_S:
            self._pause_s, self._failing_since = _FIRST_PAUSE_S, None
        elif self._failing_since is None:
            self._failing_since = now
        self.due = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def is_hopeless(self, now: float) -> bool:
        return self._failing_since is not None and now - self._failing_since > _HOPELESS_S

    def end(self, patience_s: float) -> None:
        """Wait for it, then kill it."""
        if self.process is None:
            return
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Keeper:
    """`run()` in a process of its own: it takes over signals."""

    def __init__(self, agent: Child, *, supervisor: Child | None = None, deputy: Child | None = None) -> None:
        self._agent = agent
        self._supervisor = supervisor
        self._deputy = deputy
        self._children = [child for child in (supervisor, agent, deputy) if child is not None]
        self._undelivered: set[int] = set()
        self._farewell: float | None = None  # when to stop waiting for the agent of a run whose supervisor has finished

    def run(self) -> int:
        """The exit code for the job."""
        waited = {*NOTICES, signal.SIGCHLD}
        signal.pthread_sigmask(signal.SIG_BLOCK, waited)
        while True:
            now = time.monotonic()
            for child in self._children:
                if (code := self._tend(child, now)) is not None:
                    return self._finish(*code)
            if self._farewell is not None and now > self._farewell:
                return self._finish(0, False)
            got = signal.sigtimedwait(waited, self._pause(now))
            if got is not None and got.si_signo in NOTICES:
                self._undelivered.add(got.si_signo)
            self._deliver()

    def _tend(self, child: Child, now: float) -> tuple[int, bool] | None:
        """Start a child that is due; (exit code, whether the run is over) when its end is the job's end."""
        if child.process is None:
            if now >= child.due and not (child is self._supervisor and self._farewell is not None):
                child.start(now)
            return self._given_up(child, now) if child.process is None else None
        ended = child.ended(now)
        if ended is None:
            return None
        code, verdict = ended
        if child is self._deputy:
            child.due = math.inf if code == 0 else now + _DEPUTY_PAUSE_S
            return None
        if verdict:
            told = json.loads(verdict)
            return int(told["exit_code"]), bool(told["final"])
        if code == _USER_MISTAKE or (child is self._supervisor and code == _SUPERSEDED):
            return code, False
        if child is self._supervisor and code == 0:
            self._farewell = now + _FAREWELL_S
            return None
        _say(f"the {child.name} ended with {code}")
        return self._given_up(child, now)

    def _given_up(self, child: Child, now: float) -> tuple[int, bool] | None:
        if child is self._deputy or not child.is_hopeless(now):
            return None
        _say(f"the {child.name} is not started again: {_GIVES_UP}")
        return 1, False

    def _deliver(self) -> None:
        """Only the agent hears notices. One that is about to be started keeps them until it listens."""
        process = self._agent.process
        if process is not None and process.poll() is None:
            while self._undelivered:
                process.send_signal(self._undelivered.pop())

    def _pause(self, now: float) -> float:
        due = [child.due - now for child in self._children if child.process is None]
        return max(0.0, min([_WAKE_S, *due]))

    def _finish(self, code: int, final: bool) -> int:
        self._agent.end(0.0)
        if self._deputy is not None:
            self._deputy.end(0.0)
        if self._supervisor is not None:
            # Of a run that is over, the supervisor may still be releasing other jobs.
            self._supervisor.end(_FAREWELL_S if final else 0.0)
        return code


def _say(text: str) -> None:
    """Into the batch script's output, which may lie on a full disk: that must not end the job."""
    with contextlib.suppress(OSError):
        print(f"slurm-elastic keeper: {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="slurm_elastic.agent.keeper")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--role", choices=("base", "companion", "single"), required=True)
    options = parser.parse_args(arguments)
    run_dir = RunDirectory(options.run_dir.absolute())
    if run_dir.done.exists():
        print(f"slurm-elastic: the run in {run_dir.path} is done; nothing to do")
        return 0
    role = "companion" if options.role == "companion" else "base"
    agent = Child("agent", _python("slurm_elastic.agent", run_dir, "--role", role), _prepare_agent)
    if role == "base":
        supervisor = Child("supervisor", _python("slurm_elastic.supervisor", run_dir), _prepare_deaf)
        return Keeper(agent, supervisor=supervisor).run()
    deputy = Child("deputy", _python("slurm_elastic.agent.deputy", run_dir), _prepare_deaf)
    return Keeper(agent, deputy=deputy).run()


def _python(module: str, run_dir: RunDirectory, *more: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", module, "--run-dir", str(run_dir.path), *more)


def _prepare_agent() -> None:
    """Notices stay blocked until the agent listens: their default action would kill it."""
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _prepare_deaf() -> None:
    """Some sites signal every process of a job: notices are for the agent alone."""
    die_with_parent()
    for number in NOTICES:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*NOTICES, signal.SIGCHLD})


if __name__ == "__main__":
    sys.exit(main())
