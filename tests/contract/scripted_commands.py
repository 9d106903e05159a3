"""A Runner that plays Slurm's commands over a MemorySlurm: the same words, tables and exit codes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_elastic.errors import SlurmCommandError, SlurmUnknown
from slurm_elastic.slurm.api import BatchRequest, Job
from slurm_elastic.slurm.hostlist import expand, fold
from slurm_elastic.slurm.parse_tables import FIELDS, RECORD, UNIT
from slurm_elastic.testing.memory_slurm import MemorySlurm

AWAY = "Unable to contact slurm controller (connect failure)"


class ScriptedCommands:
    def __init__(self, slurm: MemorySlurm) -> None:
        self.slurm = slurm
        self.calls: list[tuple[str, ...]] = []
        self.environ: Mapping[str, str] = {}

    def __call__(
        self, argv: Sequence[str], environ: Mapping[str, str], deadline_s: float
    ) -> subprocess.CompletedProcess[str]:
        self.calls.append(tuple(argv))
        self.environ = environ
        try:
            said = self._play(tuple(argv))
        except SlurmUnknown as silent:
            if "within" in silent.problem:
                raise subprocess.TimeoutExpired(list(argv), deadline_s) from silent
            return subprocess.CompletedProcess(argv, 1, "", f"{argv[0]}: error: {AWAY}\n")
        except _PartialAnswer as partial:
            return subprocess.CompletedProcess(argv, 1, partial.stderr, "")
        except SlurmCommandError as refused:
            return subprocess.CompletedProcess(argv, 1, "", refused.stderr)
        return subprocess.CompletedProcess(argv, 0, said, "")

    def _play(self, argv: tuple[str, ...]) -> str:
        match argv:
            case ("squeue", *words):
                users = [word.removeprefix("--user=") for word in words if word.startswith("--user=")]
                return self._table(self.slurm.jobs(user=users[0] if users else ""))
            case ("sbatch", "--test-only", *words):
                return self.slurm.test_only(_request(words))
            case ("sbatch", "--parsable", *words):
                return f"{self.slurm.submit(_request(words))}\n"
            case ("scancel", job_id):
                self.slurm.cancel(int(job_id))
                return ""
            case ("scontrol", "requeue", job_id):
                self.slurm.requeue(int(job_id))
                return ""
            case ("scontrol", "-o", "show", "node", *names):
                return self._nodes(tuple(names))
            case ("scontrol", "-o", "show", "partition"):
                return "".join(_record(values) for values in self.slurm.partitions().values())
            case ("scontrol", "show", "config"):
                return "Configuration data\n" + "".join(f"{k:<24}= {v}\n" for k, v in self.slurm.config().items())
            case ("scontrol", "--version"):
                self.slurm.version()
                return "slurm-wlm 22.05.8\n"
            case ("sacctmgr", "-P", "show", "qos"):
                return _bars([dict(values) for values in self.slurm.qos().values()])
        raise AssertionError(f"no such command here: {argv}")

    def _table(self, jobs: Sequence[Job]) -> str:
        rows = [[name.upper() for name in FIELDS], *([_cell(job, name) for name in FIELDS] for job in jobs)]
        return "".join("".join(cell + UNIT for cell in row) + RECORD + "\n" for row in rows)

    def _nodes(self, names: tuple[str, ...]) -> str:
        wanted = expand(names[0]) if names else ()
        nodes = self.slurm.nodes(wanted)
        lines = [
            f"NodeName={node.name} CPUTot={node.cpus} Gres={node.gres or '(null)'} "
            f"State={'+'.join([node.state, *sorted(node.flags)])} Partitions={','.join(node.partitions)}  "
            + (f"Reason={node.reason}" if node.reason else "")
            for node in nodes
        ]
        missing = [f"Node {name} not found" for name in wanted if name not in {node.name for node in nodes}]
        if missing:
            raise _PartialAnswer("\n".join([*lines, *missing]))
        return "\n".join(lines) + "\n"


class _PartialAnswer(SlurmCommandError):
    """scontrol prints what it found and exits 1."""

    def __init__(self, said: str) -> None:
        super().__init__(("scontrol",), 1, said)


def _cell(job: Job, name: str) -> str:
    values: dict[str, object] = {
        "JobID": job.job_id,
        "State": job.state,
        "Reason": job.reason or "None",
        "UserName": job.user,
        "Partition": job.partition,
        "QOS": job.qos,
        "Account": job.account or "(null)",
        "NodeList": fold(job.nodes),
        "NumNodes": job.num_nodes,
        "BatchHost": job.batch_host or "n/a",
        "SubmitTime": _seconds(job.submit_time),
        "StartTime": _seconds(job.start_time),
        "EndTime": _seconds(job.end_time),
        "TimeLimit": "UNLIMITED",
        "PreemptTime": _seconds(job.preempt_time),
        "RestartCnt": job.restarts,
        "exit_code": 0,
        "HetJobID": "N/A",
        "HetJobOffset": "N/A",
        "Requeue": int(job.requeue),
        "Dependency": "(null)",
        "Comment": job.comment or "(null)",
        "Name": job.name,
    }
    return str(values[name])


def _seconds(moment: float | None) -> str:
    return "N/A" if moment is None else str(int(moment))


def _record(values: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items()) + "\n"


def _bars(rows: list[dict[str, str]]) -> str:
    names = list(rows[0]) if rows else ["Name", "Priority"]
    return "\n".join(["|".join(names), *("|".join(row[name] for name in names) for row in rows)]) + "\n"


def _request(words: list[str]) -> BatchRequest:
    split = words.index("--")
    options: dict[str, str | bool] = {}
    for word in words[:split]:
        name, equals, value = word.removeprefix("--").partition("=")
        options[name] = value if equals else True
    script, *arguments = words[split + 1 :]
    token = options.pop("comment", "")
    return BatchRequest(
        script=Path(script), arguments=tuple(arguments), options=options, token=token if isinstance(token, str) else ""
    )
