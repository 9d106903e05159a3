"""Run a program to its end, bounded, with a clear error."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from slurm_elastic.errors import TestbedError

Done = subprocess.CompletedProcess[str]


def run(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    timeout_s: float = 60,
    text: str | None = None,
    cwd: str | None = None,
) -> Done:
    """Run it and give what it said. Raises TestbedError when it cannot be started or takes too long."""
    stdin = {"input": text} if text is not None else {"stdin": subprocess.DEVNULL}
    try:
        return subprocess.run(
            argv, env=environ, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd, **stdin
        )
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"`{' '.join(argv)}` took more than {timeout_s:g} s") from error
    except OSError as error:
        raise TestbedError(f"cannot run `{' '.join(argv)}`: {error}") from error


def must(argv: Sequence[str], *, environ: Mapping[str, str], timeout_s: float = 60, text: str | None = None) -> str:
    """What it printed. Raises TestbedError when it fails."""
    done = run(argv, environ=environ, timeout_s=timeout_s, text=text)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise TestbedError(f"`{' '.join(argv)}` exited {done.returncode}: {said}")
    return done.stdout
