"""`scontrol show ...`: key=value records, one per line (-o) or over several lines with a blank line between. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from slurm_elastic.slurm import parse_values as values
from slurm_elastic.slurm.api import Job, Node
from slurm_elastic.slurm.hostlist import expand
from slurm_elastic.slurm.states import job_state, node_state

# Keys of scontrol start with a capital; values may contain blanks, and words like key=value that do not.
_KEY = re.compile(r"(?:^|(?<=[ \t\n]))([A-Z][A-Za-z0-9_/:.&]*)=")
_SETTING = re.compile(r"(\S+)\s+= ?(.*)")


def records(output: str, first_key: str) -> Iterator[dict[str, str]]:
    """Each record that starts with `first_key` ("JobId"). Other lines ("No jobs in the system") are skipped."""
    starts = [found.start() for found in re.finditer(rf"(?m)^[ \t]*{re.escape(first_key)}=", output)]
    for start, end in itertools.pairwise([*starts, len(output)]):
        chunk = re.split(r"\n(?=[#$])", output[start:end])[0]
        yield _pairs(chunk)


def _pairs(record: str) -> dict[str, str]:
    """The first occurrence of a key counts: a repetition can only come from inside free text."""
    found = list(_KEY.finditer(record))
    pairs: dict[str, str] = {}
    for this, following in zip(found, [*found[1:], None], strict=True):
        end = following.start() if following else len(record)
        pairs.setdefault(this[1], record[this.end() : end].strip())
    return pairs


def jobs(output: str) -> tuple[Job, ...]:
    """`scontrol [-o] show job`, one Job per het component or array task. Raises ValueError when garbled."""
    return tuple(_job(record) for record in records(output, "JobId"))


def _job(record: Mapping[str, str]) -> Job:
    def get(key: str) -> str:
        return values.text(record.get(key, ""))

    return Job(
        job_id=int(record["JobId"].split()[0]),
        state=job_state(record["JobState"]),
        name=get("JobName"),
        user=get("UserId").partition("(")[0],
        partition=get("Partition"),
        qos=get("QOS"),
        account=get("Account"),
        nodes=expand(get("NodeList")),
        num_nodes=values.number(get("NumNodes")),
        reason=get("Reason"),
        comment=get("Comment"),
        batch_host=get("BatchHost"),
        submit_time=values.moment(get("SubmitTime")),
        start_time=values.moment(get("StartTime")),
        end_time=values.moment(get("EndTime")),
        time_limit_s=values.duration(get("TimeLimit")),
        preempt_time=values.moment(get("PreemptTime")),
        requeue=get("Requeue") == "1",
        restarts=values.number(get("Restarts")),
        exit_code=get("ExitCode"),
        het_job_id=values.number(get("HetJobId")) or None,
        het_job_offset=values.number(get("HetJobOffset")) if get("HetJobOffset") else None,
        dependency=get("Dependency"),
    )


def nodes(output: str) -> tuple[Node, ...]:
    """`scontrol [-o] show node`. Raises ValueError when garbled."""
    return tuple(_node(record) for record in records(output, "NodeName"))


def _node(record: Mapping[str, str]) -> Node:
    state, flags = node_state(record["State"])
    partitions = values.text(record.get("Partitions", ""))
    return Node(
        name=record["NodeName"],
        state=state,
        flags=flags,
        reason=values.text(record.get("Reason", "")),
        cpus=values.number(record.get("CPUTot", "")),
        gres=values.text(record.get("Gres", "")),
        partitions=tuple(partitions.split(",")) if partitions else (),
    )


def by_name(output: str, first_key: str) -> dict[str, dict[str, str]]:
    """`scontrol show partition|reservation` by its first key ("PartitionName", "ReservationName")."""
    return {record[first_key]: record for record in records(output, first_key)}


def settings(output: str) -> dict[str, str]:
    """`scontrol show config`: keys as printed. Raises ValueError when there is none."""
    found = [matched.groups() for line in output.splitlines() if (matched := _SETTING.fullmatch(line.strip()))]
    if not found:
        raise ValueError(f"no settings in {output[:80]!r}")
    return {key: value.strip() for key, value in found}
