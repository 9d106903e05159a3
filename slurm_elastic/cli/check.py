"""`slurm-elastic check FILE`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from slurm_elastic.cli.check_cluster import ClusterFacts, Finding, judge
from slurm_elastic.cli.command_files import missing_files
from slurm_elastic.cli.no_slurm import NO_SLURM, NO_SLURM_FIX
from slurm_elastic.cli.settings_file import load_or_faults, settings_file
from slurm_elastic.cli.show import as_json
from slurm_elastic.config import load
from slurm_elastic.config_advice import advice, loss_bound
from slurm_elastic.config_model import RunConfig
from slurm_elastic.errors import SlurmCommandError, SlurmError
from slurm_elastic.machine.sizes import allowed_sizes, size_policy
from slurm_elastic.units import format_duration

if TYPE_CHECKING:
    from slurm_elastic.slurm.api import SlurmClient
    from slurm_elastic.slurm.run_jobs import BatchJob

T = TypeVar("T")
COMMANDS = ("sbatch", "squeue", "scontrol")
NOT_REACHED = Finding("unknown", "cluster", f"{NO_SLURM}; {NO_SLURM_FIX}; --offline tests the file alone")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--offline", is_flag=True, help="Test the file alone; ask no cluster.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON document instead of text.")
def check(file: Path, offline: bool, json_wanted: bool) -> int:
    """Test FILE (a run.yaml, or a run directory) without starting anything.

    Shows every fault of the file with its line. Where Slurm's commands are installed, also asks the cluster:
    partitions, QOS, limits, preemption, and `sbatch --test-only` of the base job and a companion.

    \b
    Exit codes: 0 fine (perhaps with warnings), 1 the cluster would refuse it or did not answer, 2 the file is wrong.
    Example:
      slurm-elastic check run.yaml
    """
    file = settings_file(file)
    config = load_or_faults(file) if json_wanted else load(file)
    if isinstance(config, list):
        as_json({"file": str(file), "ok": False, "cluster_asked": False, "findings": [], "faults": config})
        return 2
    found = [
        Finding("warning", key, message) for key, message in (*advice(config), *missing_files(config), *_short(config))
    ]
    asked = not offline and all(shutil.which(name) for name in COMMANDS)
    if asked:
        from slurm_elastic.slurm import command_client

        found.extend(ask_cluster(config, command_client.CommandSlurm()))
        asked = NOT_REACHED not in found
    bad = any(each.level != "warning" for each in found)
    if json_wanted:
        findings = [asdict(each) for each in found]
        as_json({"file": str(file), "ok": not bad, "cluster_asked": asked, "findings": findings, "faults": []})
    else:
        _print(file, config, found, asked, offline)
    return 1 if bad else 0


def _short(config: RunConfig) -> Iterator[tuple[str, str]]:
    """A base job whose notice of the time limit comes as soon as it starts."""
    from slurm_elastic.slurm.run_jobs import BASE_NOTICE_S, notice_before_limit_s

    notice_s = notice_before_limit_s(config, BASE_NOTICE_S)
    if config.base.time is not None and config.base.time <= notice_s:
        has, needs = format_duration(config.base.time), format_duration(notice_s)
        yield "base.time", f"{has}: the run stops as soon as it starts, for it is told {needs} before the limit"


def ask_cluster(config: RunConfig, slurm: SlurmClient) -> Iterator[Finding]:
    """What the live cluster says. A question without an answer becomes a finding, too."""
    unanswered: list[Finding] = []

    def ask(question: Callable[[], T], otherwise: T, about: str) -> T:
        try:
            return question()
        except SlurmError as error:
            unanswered.append(Finding("unknown", about, f"could not be checked: {_first_line(error.problem)}"))
            return otherwise

    facts = ClusterFacts(
        config=ask(slurm.config, {}, "cluster"),
        partitions=ask(slurm.partitions, {}, "partition"),
        qos=ask(slurm.qos, {}, "qos"),
    )
    if len(unanswered) == 3:
        yield NOT_REACHED
        return
    yield from unanswered
    yield from judge(config, facts)
    yield from _test_only(config, slurm)


def _test_only(config: RunConfig, slurm: SlurmClient) -> Iterator[Finding]:
    """`sbatch --test-only` with the scripts and options of a real submit; nothing is queued."""
    with tempfile.TemporaryDirectory(prefix="slurm-elastic-check-") as folder:
        for section, job in _jobs(config):
            script = Path(folder) / job.request.script.name
            script.write_text(job.text, encoding="utf-8")
            try:
                slurm.test_only(replace(job.request, script=script))
            except SlurmCommandError as refused:
                said = " ".join(refused.stderr.split())[:300] or "no reason given"
                yield Finding("unknown" if refused.retryable else "error", section, f"sbatch --test-only: {said}")
            except SlurmError as error:
                yield Finding("unknown", section, f"could not be checked: {_first_line(error.problem)}")


def _jobs(config: RunConfig) -> Iterator[tuple[str, BatchJob]]:
    from slurm_elastic.rundir import RunDirectory
    from slurm_elastic.slurm.run_jobs import base_job, companion_job

    run = RunDirectory(Path(config.run.dir))
    yield "base", base_job(config, run, "", "check-base", python=sys.executable)
    if config.run.layout == "companions" and config.elastic.max_nodes > config.base.nodes:
        nodes = config.elastic.companion_nodes
        yield "elastic", companion_job(config, run, 1, nodes, "", "check-companion", python=sys.executable)


def _print(file: Path, config: RunConfig, found: list[Finding], asked: bool, offline: bool) -> None:
    counts = [str(nodes) for nodes in allowed_sizes(size_policy(config))]
    shown = ", ".join(counts) if len(counts) <= 12 else f"{', '.join(counts[:5])}, ... {counts[-1]}"
    click.echo(f"{file}: no faults")
    click.echo(f"  sizes: {shown} nodes of {config.workers_per_node} worker(s)")
    click.echo(f"  an unplanned failure loses {loss_bound(config)}")
    if config.changes_in_place:
        click.echo("  a script that uses run.build loses nothing as long as the others hold all state")
    for each in found:
        click.echo(f"{each.level}: {each.key}: {each.message}")
    click.echo(_verdict(found, asked, offline))


def _verdict(found: list[Finding], asked: bool, offline: bool) -> str:
    levels = {each.level for each in found}
    if asked and "error" in levels:
        return "the cluster was asked: it would not take these jobs"
    if asked:
        return "the cluster was asked" + (
            ", but did not answer all" if "unknown" in levels else ": it would take these jobs"
        )
    if NOT_REACHED in found:
        return "the cluster did not answer"
    return "the cluster was not asked" + ("" if offline else ": no Slurm commands on this machine")


def _first_line(text: str) -> str:
    return (text.splitlines() or [""])[0]
