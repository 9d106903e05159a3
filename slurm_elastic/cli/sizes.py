"""`slurm-elastic sizes FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slurm_elastic.cli.settings_file import load_or_faults, settings_file
from slurm_elastic.cli.show import as_json, as_table
from slurm_elastic.config import load
from slurm_elastic.config_model import RunConfig
from slurm_elastic.machine.batch import batch_plan, refusal
from slurm_elastic.machine.sizes import allowed_sizes, listed_sizes, size_policy


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "json_wanted", is_flag=True, help="One JSON document instead of a table.")
def sizes(file: Path, json_wanted: bool) -> int:
    """Show which numbers of nodes FILE (a run.yaml, or a run directory) allows, and the batch plan at each.

    \b
    Example:
      slurm-elastic sizes run.yaml
    """
    file = settings_file(file)
    config = load_or_faults(file) if json_wanted else load(file)
    if isinstance(config, list):
        as_json({"sizes": [], "left_out": [], "faults": config})
        return 2
    found = rows(config)
    unused = left_out(config)
    if json_wanted:
        as_json({"sizes": found, "left_out": unused, "faults": []})
        return 0
    as_table([name.replace("_", " ") for name in found[0]], [tuple(row.values()) for row in found])
    for each in unused:
        click.echo(f"never {each['nodes']} nodes: {each['why']}")
    return 0


def rows(config: RunConfig) -> list[dict[str, Any]]:
    """One for each allowed size, ascending; the keys are those of --json."""
    policy = size_policy(config)
    return [_row(config, nodes) for nodes in allowed_sizes(policy)]


def left_out(config: RunConfig) -> list[dict[str, Any]]:
    """Sizes that the range or the discrete values have, and the batch does not allow."""
    policy = size_policy(config)
    unused = sorted(set(listed_sizes(policy)) - set(allowed_sizes(policy)))
    return [{"nodes": n, "why": refusal(n * config.workers_per_node, config.batch)} for n in unused]


def _row(config: RunConfig, nodes: int) -> dict[str, Any]:
    workers = nodes * config.workers_per_node
    row: dict[str, Any] = {"nodes": nodes, "workers": workers}
    if config.run.layout == "companions":
        row["companions"] = -(-(nodes - config.base.nodes) // config.elastic.companion_nodes)
    if config.batch.global_batch_size:
        plan = batch_plan(workers, config.batch, reference_workers=size_policy(config).reference_workers)
        row |= {
            "global_batch": plan.global_batch,
            "smallest_share": plan.smallest_share,
            "largest_share": plan.largest_share,
            "micro_steps": plan.micro_steps,
            "micro_batch": plan.micro_batch,
            "lr_factor": round(plan.lr_factor, 6),
        }
    return row
