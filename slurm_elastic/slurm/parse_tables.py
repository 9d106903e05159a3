"""Tables: squeue with named fields, and the `-P` output of sacct and sacctmgr. Pure; ValueError when garbled.

The squeue query is ours alone: every field is followed by a unit separator, every record by a record separator, so
that names and comments with blanks, bars or line ends shift nothing. The header stays on: an answer without it is not
an answer, while a header alone says for sure that there are no jobs.
"""

from __future__ import annotations

from slurm_elastic.slurm import parse_values as values
from slurm_elastic.slurm.api import Job
from slurm_elastic.slurm.hostlist import expand
from slurm_elastic.slurm.states import job_state

UNIT, RECORD = "\x1f", "\x1e"
# Same names in 22.05 to 26.05. Free text comes last: what is in it can only harm itself.
FIELDS = (
    *("JobID", "State", "Reason", "UserName", "Partition", "QOS", "Account", "NodeList", "NumNodes", "BatchHost"),
    *("SubmitTime", "StartTime", "EndTime", "TimeLimit", "PreemptTime", "RestartCnt", "exit_code"),
    *("HetJobID", "HetJobOffset", "Requeue", "Dependency", "Comment", "Name"),
)


def squeue_format() -> str:
    """Value of `squeue -O`."""
    return ",".join(f"{name}:{UNIT}" for name in FIELDS) + RECORD


def squeue_jobs(output: str) -> tuple[Job, ...]:
    """Answer to `squeue -O squeue_format()` with its header."""
    header, *rows, rest = output.split(RECORD + "\n")
    if not header.endswith(UNIT) or header.count(UNIT) != len(FIELDS) or not header.lstrip().startswith("JOBID"):
        raise ValueError(f"no header in squeue's answer {output[:80]!r}")
    if rest.strip():
        raise ValueError(f"squeue's answer was cut off: {rest[:80]!r}")
    return tuple(_job(row) for row in rows)


def _job(row: str) -> Job:
    cells = row.removesuffix(UNIT).split(UNIT, len(FIELDS) - 1)
    if len(cells) != len(FIELDS):
        raise ValueError(f"{len(cells)} fields instead of {len(FIELDS)} in {row[:80]!r}")
    get = {name: values.text(cell) for name, cell in zip(FIELDS, cells, strict=True)}
    return Job(
        job_id=int(get["JobID"]),
        state=job_state(get["State"]),
        name=get["Name"],
        user=get["UserName"],
        partition=get["Partition"],
        qos=get["QOS"],
        account=get["Account"],
        nodes=expand(get["NodeList"]),
        num_nodes=values.number(get["NumNodes"]),
        reason=get["Reason"],
        comment=get["Comment"],
        batch_host=get["BatchHost"],
        submit_time=values.moment(get["SubmitTime"]),
        start_time=values.moment(get["StartTime"]),
        end_time=values.moment(get["EndTime"]),
        time_limit_s=values.duration(get["TimeLimit"]),
        preempt_time=values.moment(get["PreemptTime"]),
        requeue=get["Requeue"] == "1",
        restarts=values.number(get["RestartCnt"]),
        exit_code=values.exit_code(get["exit_code"]),
        het_job_id=values.number(get["HetJobID"]) or None,
        het_job_offset=values.number(get["HetJobOffset"]) if values.number(get["HetJobID"]) else None,
        dependency=get["Dependency"],
    )


def bar_table(output: str) -> tuple[dict[str, str], ...]:
    """`sacct -P`, `sacctmgr -P`: one dict per row, by the header's names.

    Rows with too few cells are garbled; a bar inside the last column stays in it.
    """
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith(("#", "$"))]
    if not lines or "|" not in lines[0]:
        raise ValueError(f"no header in {output[:80]!r}")
    names = lines[0].split("|")
    rows: list[dict[str, str]] = []
    for line in lines[1:]:
        cells = line.split("|", len(names) - 1)
        if len(cells) != len(names):
            raise ValueError(f"{len(cells)} cells instead of {len(names)} in {line[:80]!r}")
        rows.append(dict(zip(names, cells, strict=True)))
    return tuple(rows)


def field_rows(output: str, names: tuple[str, ...]) -> tuple[dict[str, str], ...]:
    """`sinfo -h -O 'A:|,B:|'`: one dict per line, by the names that were asked for."""
    rows: list[dict[str, str]] = []
    for line in output.splitlines():
        cells = line.removesuffix("|").split("|")
        if len(cells) != len(names):
            raise ValueError(f"{len(cells)} cells instead of {len(names)} in {line[:80]!r}")
        rows.append(dict(zip(names, cells, strict=True)))
    return tuple(rows)
