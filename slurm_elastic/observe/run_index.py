"""Which runs this user has, on whatever machine the home directory is: one small file per run. `status` reads it.

$XDG_STATE_HOME/slurm-elastic/runs/<name>-<hash>     the path of a run directory
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_elastic.rundir import RunDirectory, replace_text


def index_folder(environ: Mapping[str, str]) -> Path:
    """Where the index of the user with this environment lies; it may not exist yet."""
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or "/") / ".local" / "state")
    return Path(state) / "slurm-elastic" / "runs"


def remember(folder: Path, run_dir: Path) -> None:
    """Enter a run. Safe to repeat. Raises OSError; a run works without being listed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = str(run_dir.resolve())
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    replace_text(folder / f"{run_dir.name[:40]}-{digest}", path + "\n", durable=False)


def known_runs(folder: Path, *also_under: Path) -> Iterator[RunDirectory]:
    """Runs of the index that still exist, then run directories directly in `also_under`, each once, by path."""
    found = {*_remembered(folder), *(path for parent in also_under for path in _directly_in(parent))}
    for path in sorted(found):
        yield RunDirectory(path)


def is_run(path: Path) -> bool:
    """Also one that lost its run.yaml or token while it runs: what its supervisor writes tells."""
    made = (path / "run.yaml").is_file() and (path / "token").exists()
    return made or ((path / "status.json").is_file() and (path / "journal.jsonl").is_file())


def _remembered(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.name.startswith(".") or not entry.is_file():
            continue
        path = Path(entry.read_text(encoding="utf-8", errors="surrogateescape").strip())
        if path.is_absolute() and is_run(path):
            yield path


def _directly_in(parent: Path) -> Iterator[Path]:
    candidates = [parent, *(path for path in parent.iterdir() if path.is_dir())] if parent.is_dir() else []
    yield from (path.resolve() for path in candidates if is_run(path))
