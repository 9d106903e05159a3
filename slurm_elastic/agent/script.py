"""Running the user's command: a Python script in this process, whose imports are done; anything else by exec."""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import io
import os
import runpy
import signal
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

_WARM = "torch,torch.distributed,torch.distributed.checkpoint,torch.nn.parallel,slurm_elastic.training"
PYTHONS = frozenset({"python", "python3", f"python{sys.version_info.major}.{sys.version_info.minor}"})


def is_python(command: Sequence[str]) -> bool:
    """Whether `command` is a script or module for this very interpreter, without options that only a start can set."""
    if len(command) < 2 or not _is_this_python(command[0]):
        return False
    return (command[1] == "-m" and len(command) > 2) or not command[1].startswith("-")


def warm_up(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Import what scripts of this kind need, so that the gate opens onto a warm process. Absent modules are skipped.

    ELASTIC_WARM (in `run.env`) names other modules, separated by commas; empty: none. Returns what failed.
    """
    failed = []
    for name in filter(None, environ.get("ELASTIC_WARM", _WARM).split(",")):
        try:
            importlib.import_module(name.strip())
        except ImportError:
            # The script will say so itself if it needs it.
            failed.append(name)
    return tuple(failed)


def run_python(command: Sequence[str]) -> int:
    """As `python ...` would, in this process: what the script does not catch is shown. The script's exit code."""
    try:
        _run(command)
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return 1
    except BaseException as raised:  # noqa: BLE001 - left to Python, torch's teardown comes first: a silent worker
        sys.excepthook(type(raised), raised, raised.__traceback__)
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """End this process as Python would (threads, atexit, buffers), but without taking the interpreter apart.

    With torch loaded that takes one to three seconds, in which the next generation waits behind its gate.
    """
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _run(command: Sequence[str]) -> None:
    if command[1] == "-m":
        sys.argv = [command[2], *command[3:]]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
        return
    path = command[1]
    sys.argv = list(command[1:])
    sys.path.insert(0, str(Path(path).resolve().parent))
    with io.open_code(str(Path(path).absolute())) as source:
        code = compile(source.read(), path, "exec")
    # A module of its own that stays: whatever pickles or inspects __main__ finds the script, until the very end.
    module = types.ModuleType("__main__")
    module.__dict__.update({"__file__": path, "__builtins__": __builtins__})
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def exec_command(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Replace this process. USR1 and USR2 stay ignored: nothing is there yet that could want them. Raises OSError."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    program = sys.executable if command[0] in PYTHONS else command[0]
    os.execvpe(program, [program, *command[1:]], dict(environ))


def _is_this_python(program: str) -> bool:
    return program in PYTHONS or (os.sep in program and Path(program).absolute() == Path(sys.executable).absolute())
