"""The settings of a run that is under way: a fault edited into its run.yaml must not end it."""

from __future__ import annotations

import logging

from slurm_elastic.config import dump, load
from slurm_elastic.config_model import RunConfig
from slurm_elastic.errors import ConfigError
from slurm_elastic.rundir import RunDirectory, replace_text

log = logging.getLogger(__name__)


def keep(run: RunDirectory, config: RunConfig) -> None:
    """Let these be the settings that count while run.yaml is not valid. A full disk here stops nothing."""
    try:
        replace_text(run.last_valid, dump(config))
    except OSError as broken:
        log.error("settings not kept path=%s problem=%s", run.last_valid, broken)


def load_of_run(run: RunDirectory) -> tuple[RunConfig, str]:
    """The settings in run.yaml and ""; while it is not valid, those kept, and a warning that says so.

    Raises ConfigError when there are none.
    """
    try:
        return load(run.config), ""
    except ConfigError as broken:
        kept = _kept(run)
        if kept is None:
            raise
        first = broken.problem.partition("\n")[0]
        return kept, f"{first}; the settings before hold until the file is mended"


def _kept(run: RunDirectory) -> RunConfig | None:
    try:
        return load(run.last_valid)
    except ConfigError:
        return None
