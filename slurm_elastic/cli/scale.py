"""`slurm-elastic scale RUN --nodes N`."""

from __future__ import annotations

import click


@click.command()
@click.argument("run", metavar="RUN|JOBID")
@click.option("--nodes", required=True, metavar="N|max", help="How many nodes, or 'max': as many as the policy allows.")
def scale(run: str, nodes: str) -> None:
    """Ask RUN for another number of nodes now, beyond what its policy would do by itself.

    The run changes as soon as it can: shrinking takes one boundary, growing needs companions that Slurm starts.

    \b
    Examples:
      slurm-elastic scale runs/gpt --nodes 6
      slurm-elastic scale 4711 --nodes max
    \b
    Exit codes: 0 asked for (see `status`), 1 the supervisor did not take it, 2 no such size or run, or it is over
    """
    from slurm_elastic.cli.requests import ask, running

    wanted = _number(nodes)
    found, status = running(run)
    if wanted is not None and not status.min_nodes <= wanted <= status.max_nodes:
        raise click.BadParameter(
            f"{wanted} is outside {status.min_nodes} to {status.max_nodes} (elastic.min_nodes, max_nodes)",
            param_hint="--nodes",
        )
    ask(found, {"ask": "scale", "nodes": wanted})
    click.echo(f"asked for {nodes} nodes; {status.nodes} train now. `slurm-elastic status {run}` shows how it goes")


def _number(nodes: str) -> int | None:
    if nodes == "max":
        return None
    if nodes.isascii() and nodes.isdigit() and len(nodes) < 7:
        return int(nodes)
    raise click.BadParameter(f"{nodes!r} is neither a number of nodes nor 'max'", param_hint="--nodes")
