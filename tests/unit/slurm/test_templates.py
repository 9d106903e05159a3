import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_elastic.errors import UserMistake
from slurm_elastic.slurm import templates

NAMES = ("base", "companion", "single", "mpi", "level0")
HOSTILE = (
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned; #",
    "a b  c",
    "'; touch pwned; '",
    '" ; touch pwned ; "',
    "\\",
    "back\\slash'quote\"",
    "*?[a-z]~!{1,2}",
    "# comment",
    "$HOME",
    "ünïcode",
    "-n",
    "",
)


@pytest.mark.parametrize("name", NAMES)
def test_every_template_is_a_whole_script_that_execs_the_keeper(name):
    text = templates.read(name)

    assert text.startswith("#!/bin/bash\n")
    assert text.count("# >>> ") == text.count("# <<< ") == 2
    assert text.rstrip().splitlines()[-1].startswith('exec "$python" -m slurm_elastic.agent.keeper')
    assert max(len(line) for line in text.splitlines()) <= 120


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck")
def test_templates_and_what_is_made_of_them_are_clean_for_shellcheck(tmp_path):
    scripts = [templates.FOLDER / f"{name}.sbatch" for name in NAMES]
    for name in NAMES:
        script = tmp_path / f"{name}.sbatch"
        script.write_text(templates.render(name, {"nodes": "2"}, {"run_dir": "/a b/'c", "python": "/bin/py$thon"}))
        scripts.append(script)

    done = subprocess.run(["shellcheck", *map(str, scripts)], capture_output=True, text=True, timeout=60)

    # A literal $ in single quotes is what we mean.
    assert [line for line in done.stdout.splitlines() if "(" in line and "SC2016" not in line] == []


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_value_can_become_shell_code(tmp_path, hostile):
    script = tmp_path / "job.sh"
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    script.write_text(
        templates.render("base", {"job-name": hostile, "comment": hostile}, {"run_dir": hostile, "python": str(python)})
    )

    done = subprocess.run(["bash", str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=20)

    assert done.stderr == ""
    assert done.stdout.splitlines()[3] == hostile
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.sh", "python"]


@pytest.mark.parametrize("value", ["two\nlines", "a\r", "bell\x07", "nul\x00", "\u2028"])
@pytest.mark.parametrize("where", ["option", "variable"])
def test_line_ends_and_control_characters_are_refused(value, where):
    options = {"comment": value} if where == "option" else {}
    variables = {"run_dir": value} if where == "variable" else {}

    with pytest.raises(UserMistake, match="line end"):
        templates.render("base", options, variables)


@pytest.mark.parametrize("name", ["x y", "wrap=rm", "-n", "A", "x\n#"])
def test_a_name_that_is_no_option_is_refused(name):
    with pytest.raises(UserMistake):
        templates.render("base", {name: True}, {})


def test_flags_values_and_absent_options():
    text = templates.render("base", {"requeue": True, "qos": "", "exclusive": False, "nodes": "2"}, {"python": "p"})
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]

    assert lines == ["#SBATCH --requeue", "#SBATCH --nodes=2"]


def test_templates_lie_at_the_top_of_a_checkout_and_inside_the_package():
    assert Path(templates.FOLDER).resolve().name == "sbatch_templates"
    assert {path.stem for path in templates.FOLDER.iterdir()} == set(NAMES)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("a b", '"a b"'),
        ('a "b" c', '"a \\"b\\" c"'),
        ("back\\slash", '"back\\\\slash"'),
        ("it's # 1", '"it\'s # 1"'),
        ("/runs/x-%j.out", "/runs/x-%j.out"),
    ],
)
def test_option_values_are_quoted_as_sbatch_reads_them_which_is_not_as_a_shell_does(value, line):
    text = templates.render("base", {"comment": value}, {})

    assert f"#SBATCH --comment={line}\n" in text
