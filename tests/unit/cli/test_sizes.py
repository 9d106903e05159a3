from __future__ import annotations

import json

from slurm_elastic.cli.main import run

FILE = """\
run: {name: x, dir: /tmp/x, command: [python]}
base: {nodes: 2, workers_per_node: 2}
elastic: {max_nodes: 5}
"""


def write(tmp_path, more: str) -> str:
    (tmp_path / "run.yaml").write_text(FILE + more)
    return str(tmp_path / "run.yaml")


def test_each_size_is_shown_with_its_batch_plan(tmp_path, capsys):
    assert run(["sizes", "--json", write(tmp_path, "batch: {global_batch_size: 30, micro_batch_size: 2}\n")]) == 0
    answer = json.loads(capsys.readouterr().out)

    assert [row["nodes"] for row in answer["sizes"]] == [2, 3, 4, 5]
    assert answer["sizes"][2] == {
        "nodes": 4,
        "workers": 8,
        "companions": 2,
        "global_batch": 30,
        "smallest_share": 3,
        "largest_share": 4,
        "micro_steps": 2,
        "micro_batch": 2,
        "lr_factor": 1.0,
    }
    assert answer["left_out"] == []


def test_sizes_that_the_batch_forbids_are_named_with_the_reason(tmp_path, capsys):
    assert run(["sizes", write(tmp_path, "batch: {global_batch_size: 30, uneven: false}\n")]) == 0
    text = capsys.readouterr().out

    assert "global batch" in text
    assert "never 2 nodes: 4 workers do not divide the global batch of 30" in text


def test_without_a_batch_only_the_sizes_are_shown(tmp_path, capsys):
    assert run(["sizes", write(tmp_path, "")]) == 0
    assert "companions" in capsys.readouterr().out


def test_a_bad_file_exits_2(tmp_path, capsys):
    assert run(["sizes", write(tmp_path, "batches: {}\n")]) == 2
    assert "run.yaml:4: batches is not a setting; did you mean 'batch'?" in capsys.readouterr().err
