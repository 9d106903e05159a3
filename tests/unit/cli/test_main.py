from __future__ import annotations

import os
import subprocess
import sys
import time

import click
import pytest

from slurm_elastic.cli import main
from slurm_elastic.errors import SlurmCommandError, SlurmUnknown, UserMistake, WireError


def fails_with(monkeypatch, error: BaseException) -> None:
    @click.command()
    def broken() -> None:
        raise error

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda self, ctx, name: broken)


def test_help_names_every_command_with_examples(capsys):
    assert main.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in main.COMMANDS)
    assert "Examples:" in text and "Tab completion" in text


def test_help_is_fast_and_imports_no_heavy_library():
    script = (
        "import sys; from slurm_elastic.cli.main import run; run(['--help']);"
        "bad = {'torch', 'mpi4py', 'rich', 'yaml', 'msgspec', 'asyncio'} & set(sys.modules); assert not bad, bad"
    )
    best = 9.0
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=30)
        best = min(best, time.perf_counter() - start)
    assert best < 1.0  # far from the promised 0.3 s only on a machine that is busy with other things


def test_the_version_is_shown(capsys):
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("slurm-elastic 0.")


@pytest.mark.parametrize(("typed", "meant"), [("siezs", "sizes"), ("stat", "status"), ("submti", "submit")])
def test_a_mistyped_command_gets_a_suggestion(typed, meant, capsys):
    assert main.run([typed]) == 2
    assert f"did you mean '{meant}'?" in capsys.readouterr().err


def test_no_command_at_all_shows_the_help(capsys):
    assert main.run([]) == 2
    assert "Commands:" in "".join(capsys.readouterr())


def test_an_unknown_flag_is_a_users_mistake(capsys):
    assert main.run(["sizes", "--jsn", "x"]) == 2
    assert "--json" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(UserMistake("no", fix="do"), 2), (SlurmUnknown("no", fix="do"), 3)])
def test_our_errors_are_printed_with_their_fix_and_exit_code(error, code, monkeypatch, capsys):
    fails_with(monkeypatch, error)

    assert main.run(["init"]) == code
    assert capsys.readouterr().err == "error: no\n  fix: do\n"


def test_a_bug_is_one_line_and_how_to_get_the_traceback(monkeypatch, capsys):
    fails_with(monkeypatch, KeyError("lost\nnode\ud800"))

    assert main.run(["init"]) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error and "KeyError" in error and "-vv" in error and len(error.splitlines()) == 2


def test_an_interrupt_is_no_bug(monkeypatch, capsys):
    fails_with(monkeypatch, KeyboardInterrupt())

    assert main.run(["init"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_tab_completion_knows_the_commands():
    environment = os.environ | {
        "_SLURM_ELASTIC_COMPLETE": "bash_complete",
        "COMP_WORDS": "slurm-elastic st",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "slurm_elastic.cli.main"], env=environment, capture_output=True, text=True, timeout=30
    )
    assert "status" in done.stdout and "stop" in done.stdout


NO_CLUSTER = """squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
squeue: error: fetch_config: DNS SRV lookup failed
squeue: fatal: Could not establish a configuration source"""


def test_without_a_cluster_it_is_said_in_one_line(monkeypatch, capsys):
    fails_with(monkeypatch, SlurmCommandError(("squeue", "-a", "-O", "x" * 250), 1, NO_CLUSTER))

    assert main.run(["sizes"]) == 3
    first, fix = capsys.readouterr().err.splitlines()
    assert first == "error: no Slurm can be reached from here"
    assert "SLURM_CONF" in fix


@pytest.mark.parametrize("error", [SlurmUnknown("`squeue` gave no answer"), UserMistake("wrong"), WireError("odd")])
def test_every_error_has_a_fix(error, monkeypatch, capsys):
    fails_with(monkeypatch, error)

    assert main.run(["sizes"]) == error.exit_code
    assert "\n  fix: " in capsys.readouterr().err
