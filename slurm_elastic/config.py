"""run.yaml: read once, checked once, frozen. Every fault is reported at once, each with its key and line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import yaml

from slurm_elastic import config_rules
from slurm_elastic.config_decode import Decoded, decode
from slurm_elastic.config_model import RunConfig
from slurm_elastic.config_yaml import Fault, Unreadable, parse, read_text
from slurm_elastic.errors import ConfigError

MOST_FAULTS = 50
MISSING_FIX = "name another file or a run directory; `slurm-elastic init` writes a run.yaml to start from"


def load(path: Path | str) -> RunConfig:
    """The settings in `path`, with `run.dir`, `run.workdir` and `checkpoint.dir` absolute.

    Relative paths count from the file's folder. Raises ConfigError listing every fault; nothing else.
    """
    path = Path(path)
    try:
        text = read_text(path)
    except Unreadable as broken:
        missing = isinstance(broken.__cause__, FileNotFoundError)
        raise ConfigError(path, [broken.fault], fix=MISSING_FIX if missing else "") from broken
    return loads(text, path)


def loads(text: str, path: Path | str) -> RunConfig:
    """As `load`, for text that is (or will be) in `path`."""
    faults: list[Fault] = []
    try:
        tree = parse(text, faults)
    except Unreadable as broken:
        raise ConfigError(path, [*faults, broken.fault]) from broken
    decoded = decode(tree, faults)
    faults.extend(_broken_rules(decoded))
    if faults:
        raise ConfigError(path, _in_order(faults))
    return _resolved(decoded.config, Path(path))


def dump(config: RunConfig) -> str:
    """YAML that `loads` reads back to the same value, from whatever folder: this is what a run directory keeps."""
    plain: dict[str, Any] = msgspec.to_builtins(config)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=False, width=120)


def _broken_rules(decoded: Decoded) -> list[Fault]:
    wrong = {key for _, key, _ in decoded.faults}
    found: list[Fault] = []
    for keys, reason in config_rules.faults(decoded.config):
        if not wrong.intersection(keys):
            found.append((_line(decoded, keys), keys[0], reason))
            wrong.add(keys[0])
    return found


def _line(decoded: Decoded, keys: tuple[str, ...]) -> int | None:
    """Of the first of `keys` that the file has; else of the section."""
    given = (decoded.lines[key] for key in keys if key in decoded.lines)
    return next(given, decoded.line_of(keys[0]))


def _in_order(faults: list[Fault]) -> list[Fault]:
    ordered = sorted(faults, key=lambda fault: fault[0] or 0)
    more = len(ordered) - MOST_FAULTS
    return ordered if more <= 0 else [*ordered[:MOST_FAULTS], (None, "and", f"{more} more faults")]


def _resolved(config: RunConfig, path: Path) -> RunConfig:
    folder = path.expanduser().absolute().parent
    run = msgspec.structs.replace(
        config.run,
        dir=_absolute(config.run.dir, folder),
        workdir=_absolute(config.run.workdir, folder) if config.run.workdir else str(folder),
    )
    kept = config.checkpoint
    if kept.dir:
        kept = msgspec.structs.replace(kept, dir=_absolute(kept.dir, folder))
    return msgspec.structs.replace(config, run=run, checkpoint=kept)


def _absolute(written: str, folder: Path) -> str:
    """A `~` that leads nowhere stays as it is written: the directory's owner is found out at submit."""
    try:
        home = Path(written).expanduser()
    except RuntimeError:  # no such user
        home = Path(written)
    return os.path.normpath(folder / home)
