"""Do the settings fit the cluster as it is configured now? Judges what Slurm answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from slurm_elastic.config_decode import did_you_mean
from slurm_elastic.config_model import RunConfig
from slurm_elastic.errors import SlurmError
from slurm_elastic.units import format_duration, parse_duration

if TYPE_CHECKING:
    from slurm_elastic.slurm.api import SlurmClient

Records = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Finding:
    """`error`: the run could not start or would break. `warning`: it may surprise. `unknown`: could not be checked."""

    level: Literal["error", "warning", "unknown"]
    key: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What SlurmClient's `config`, `partitions` and `qos` answered."""

    config: Mapping[str, str] = field(default_factory=dict)
    partitions: Records = field(default_factory=dict)
    qos: Records = field(default_factory=dict)  # empty without accounting


def judge(config: RunConfig, facts: ClusterFacts) -> Iterator[Finding]:
    """Everything about partitions, QOS, limits and preemption that does not fit `config`."""
    base, elastic = config.base, config.elastic
    if config.run.layout == "single":
        yield from _single(config, facts)
        return
    nodes, companions = base.nodes, elastic.max_nodes > base.nodes
    yield from _partition("base", base.partition, nodes, base.time, config, facts)
    yield from _qos("base", base.qos, base.time, facts)
    if companions:
        yield from _partition(
            "elastic", elastic.partition or base.partition, elastic.companion_nodes, elastic.time, config, facts
        )
        yield from _qos("elastic", elastic.qos, elastic.time, facts)
        yield from _preemption(config, facts)


def _single(config: RunConfig, facts: ClusterFacts) -> Iterator[Finding]:
    """The only job takes its options from `elastic`, and from `base` what is not there."""
    base, elastic = config.base, config.elastic
    time_s, nodes = elastic.time or base.time, elastic.min_nodes
    section = "elastic" if elastic.partition else "base"
    yield from _partition(section, elastic.partition or base.partition, nodes, time_s, config, facts)
    yield from _qos("elastic" if elastic.qos else "base", elastic.qos or base.qos, time_s, facts)


def unknown_names(config: RunConfig, slurm: SlurmClient) -> list[Finding]:
    """QOS and partitions of companions that do not exist: Slurm would refuse them only after the run has started.

    Empty when Slurm does not answer: whether the run can start is for sbatch to say.
    """
    elastic = config.elastic
    if config.run.layout != "companions" or elastic.max_nodes <= config.base.nodes:
        return []
    try:
        facts = ClusterFacts(
            partitions=slurm.partitions() if elastic.partition else {}, qos=slurm.qos() if elastic.qos else {}
        )
    except SlurmError:
        return []
    partitions = elastic.partition.split(",") if facts.partitions else []
    found = [finding for name in partitions if (finding := _no_partition("elastic", name, facts))]
    if facts.qos and (finding := _no_qos("elastic", elastic.qos, facts)):
        found.append(finding)
    return found


def _no_partition(section: str, name: str, facts: ClusterFacts) -> Finding | None:
    if name in facts.partitions:
        return None
    hint = did_you_mean(name, facts.partitions) or f"; there are {', '.join(sorted(facts.partitions)[:10])}"
    return Finding("error", f"{section}.partition", f"Slurm has no partition {name!r}{hint}")


def _no_qos(section: str, name: str, facts: ClusterFacts) -> Finding | None:
    if name.lower() in (known.lower() for known in facts.qos):  # as Slurm compares them
        return None
    hint = did_you_mean(name, facts.qos) or f"; there are {', '.join(sorted(facts.qos)[:10])}"
    return Finding("error", f"{section}.qos", f"Slurm has no QOS {name!r}{hint}")


def _partition(
    section: str, names: str, nodes: int, time_s: float | None, config: RunConfig, facts: ClusterFacts
) -> Iterator[Finding]:
    if not facts.partitions:
        return
    wanted = config.elastic.max_nodes
    for name in names.split(",") if names else _default_partition(facts):
        unknown = _no_partition(section, name, facts)
        if unknown:
            yield unknown
            continue
        found = facts.partitions[name]
        state = found.get("State", "UP")
        if state != "UP":
            yield Finding("warning", f"{section}.partition", f"partition {name} is {state}: jobs wait or are refused")
        total = _count(found.get("TotalNodes"))
        if total is not None and total < nodes:
            yield Finding("error", f"{section}.partition", f"partition {name} has {total} nodes, {nodes} are needed")
        elif total is not None and not config.elastic.partition and section == "base" and total < wanted:
            message = f"partition {name} has only {total} nodes: {wanted} are never reached"
            yield Finding("warning", "elastic.max_nodes", message)
        most = _count(found.get("MaxNodes"))
        if most is not None and most < nodes:
            yield Finding("error", f"{section}.partition", f"partition {name} allows {most} nodes a job, not {nodes}")
        yield from _time_limit(f"{section}.time", time_s, found.get("MaxTime"), f"partition {name}")


def _default_partition(facts: ClusterFacts) -> list[str]:
    return [name for name, found in facts.partitions.items() if found.get("Default") == "YES"]


def _qos(section: str, name: str, time_s: float | None, facts: ClusterFacts) -> Iterator[Finding]:
    if not name or not facts.qos:
        return
    unknown = _no_qos(section, name, facts)
    if unknown:
        yield unknown
        return
    yield from _time_limit(f"{section}.time", time_s, facts.qos.get(name, {}).get("MaxWall"), f"QOS {name}")


def _time_limit(key: str, wanted_s: float | None, printed: str | None, where: str) -> Iterator[Finding]:
    limit_s = _seconds(printed)
    if wanted_s is not None and limit_s is not None and wanted_s > limit_s:
        message = f"is {format_duration(wanted_s)}, {where} allows {format_duration(limit_s)}"
        yield Finding("error", key, message)


def _preemption(config: RunConfig, facts: ClusterFacts) -> Iterator[Finding]:
    """Combinations that are accepted by Slurm and deadly, or useless, for an elastic run."""
    kind = facts.config.get("PreemptType", "")
    if not kind:
        return
    if kind.endswith("none"):
        yield Finding(
            "warning", "elastic.qos", "this cluster preempts nothing (PreemptType): companions keep their nodes"
        )
        return
    mode = facts.config.get("PreemptMode", "")
    companion = facts.qos.get(config.elastic.qos or config.base.qos, {})
    own_mode = companion.get("PreemptMode", "") if kind.endswith("qos") else ""
    own_mode = mode if own_mode.lower() in ("", "cluster") else own_mode
    if "suspend" in own_mode.lower():
        yield Finding("warning", "elastic.qos", "companions are preempted by SUSPEND: they freeze without a notice")
    if not kind.endswith("qos") or not facts.qos:
        return
    name = config.elastic.qos or "the default QOS"
    victims = {victim for record in facts.qos.values() for victim in record.get("Preempt", "").split(",") if victim}
    if config.base.qos in victims:
        yield Finding(
            "warning", "base.qos", f"QOS {config.base.qos} is itself preempted by another: the run's owner can go"
        )
    if config.elastic.qos and config.elastic.qos not in victims:
        yield Finding("warning", "elastic.qos", f"no QOS preempts {name}: companions keep their nodes")
    yield from _grace(config, companion, facts)


def _grace(config: RunConfig, companion: Mapping[str, str], facts: ClusterFacts) -> Iterator[Finding]:
    grace_s = _seconds(companion.get("GraceTime")) or 0.0
    kill_wait_s = _seconds((facts.config.get("KillWait") or "").removesuffix(" sec")) or 0.0
    wanted_s = config.elastic.graceful_shutdown_timeout
    if companion and grace_s + kill_wait_s < wanted_s:
        message = (
            f"is {format_duration(wanted_s)}, but a preempted companion has {format_duration(grace_s)} of GraceTime "
            f"and {format_duration(kill_wait_s)} of KillWait"
        )
        yield Finding("warning", "elastic.graceful_shutdown_timeout", message)


def _count(printed: str | None) -> int | None:
    """None for UNLIMITED and whatever else is no number."""
    return int(printed) if printed and printed.isascii() and printed.isdigit() and len(printed) < 10 else None


def _seconds(printed: str | None) -> float | None:
    try:
        return parse_duration(printed) if printed else None
    except ValueError:  # UNLIMITED, NONE, ...
        return None
