"""The run directory on the shared file system: its files, who may write them, and how they are replaced.

    <run>/run.yaml  token (0600)  endpoint.json  journal.jsonl  events.jsonl  ledger.jsonl  status.json  DONE
          run.last-valid.yaml  settings for as long as run.yaml has a fault
          requests/          what the CLI asks of the supervisor (one JSON file each, removed when taken)
          checkpoints/step-00001200/  checkpoints/latest
          logs/gen-0003/<node>-<local_rank>.log   logs/supervisor.log   logs/agent-<job>.log   logs/slurm-<job>.out
          jobs/              batch scripts as they were submitted
          submitted.json     the base job that was submitted last  (.submit.lock: held while `submit` is at it)
          gate.json          ranks and checkpoint of the generation whose gate was opened last
          regroup.json       seats of the generation that was made in place last
          epochs/            one empty file per start of a supervisor: who creates it owns the epoch

Only the supervisor writes journal, events, ledger, status, gate, DONE and endpoint; `submit` writes submitted.json.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_elastic.errors import RunDirectoryError

TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of one run. Creating the value touches nothing."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "run.yaml"

    @property
    def last_valid(self) -> Path:
        """The settings that hold while run.yaml is not valid."""
        return self.path / "run.last-valid.yaml"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def endpoint(self) -> Path:
        return self.path / "endpoint.json"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def done(self) -> Path:
        return self.path / "DONE"

    @property
    def requests(self) -> Path:
        return self.path / "requests"

    @property
    def checkpoints(self) -> Path:
        """Default place; `checkpoint.dir` in run.yaml may name another."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def jobs(self) -> Path:
        return self.path / "jobs"

    def worker_log(self, generation: int, node: str, local_rank: int) -> Path:
        return self.logs / f"gen-{generation:04d}" / f"{node}-{local_rank}.log"

    def create(self) -> None:
        """Make the directory (0700 by the owner), its folders and the token. Safe to repeat."""
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.check_safe()
        for folder in (self.requests, self.logs, self.jobs, self.checkpoints):
            folder.mkdir(mode=0o755, exist_ok=True)
        if not self.token.exists():
            draft = self.path / f".token.{os.getpid()}"
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as out:
                out.write(secrets.token_hex(TOKEN_BYTES))
                out.flush()
                os.fsync(out.fileno())
            draft.replace(self.token)

    def check_safe(self) -> None:
        """Raises RunDirectoryError when others may write here, or the token can be read by others."""
        try:
            mode = self.path.stat().st_mode
        except OSError as broken:
            raise RunDirectoryError(
                f"no run directory {self.path}: {broken.strerror}", fix="check the path (run.dir in run.yaml)"
            ) from broken
        if not stat.S_ISDIR(mode):
            raise RunDirectoryError(f"{self.path} is not a directory", fix="choose another run.dir")
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise RunDirectoryError(
                f"{self.path} can be written by others (mode {stat.S_IMODE(mode):04o})",
                fix=f"chmod go-w {self.path}",
            )
        if self.token.exists() and self.token.stat().st_mode & 0o077:
            raise RunDirectoryError(f"{self.token} can be read by others", fix=f"chmod 600 {self.token}")

    def read_token(self) -> bytes:
        """The secret that all processes of this run share."""
        try:
            return bytes.fromhex(self.token.read_text(encoding="ascii").strip())
        except (OSError, ValueError) as broken:
            raise RunDirectoryError(
                f"cannot read the run's token {self.token}: {broken}",
                fix="is this a run directory, and are you its owner?",
            ) from broken


def replace_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write `value` beside `path`, then replace it in one step: readers see the old or the new, never a part."""
    replace_text(path, json.dumps(value, separators=(",", ":")) + "\n", durable=durable)


def replace_text(path: Path, text: str, *, durable: bool = True) -> None:
    """As `replace_json`, for text. `durable`: survives a power loss once this returns."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        if durable:
            os.fsync(out.fileno())
    draft.replace(path)
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames and new names in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
