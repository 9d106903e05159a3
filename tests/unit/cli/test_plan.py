from __future__ import annotations

import json

import pytest

from slurm_elastic.cli.main import run

CASE = {
    "id": "one",
    "tensors": {"w": {"shape": [14], "dtype": "float32"}},
    "devices": [{"id": f"d{k}", "node": f"n{k // 2}", "state": "up"} for k in range(4)],
    "prev": {"ranks": [{"device": f"d{k}", "holds": {"w": [[[4 * k], [min(4, 14 - 4 * k)]]]}} for k in range(4)]},
    "curr": {"ranks": [{"holds": {"w": [[[5 * k], [min(5, 14 - 5 * k)]]]}} for k in range(3)]},
}
OLD = {
    "format": "slurm-elastic-layout/1",
    "tensors": CASE["tensors"],
    "workers": [{"device": f"d{k}", "node": f"n{k // 2}", **CASE["prev"]["ranks"][k]} for k in range(4)],
}
NEW = {"format": "slurm-elastic-layout/1", "workers": CASE["curr"]["ranks"]}


@pytest.fixture
def write(tmp_path):
    def file(name: str, value: object) -> str:
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return str(path)

    return file


def test_plans_of_all_cases_are_printed_as_one_document(write, capsys):
    lost = CASE | {"id": "lost", "prev": {"ranks": CASE["prev"]["ranks"][:3]}}
    few = CASE | {"id": "few", "devices": CASE["devices"][:2], "prev": {"ranks": CASE["prev"]["ranks"][:2]}}
    assert run(["plan", "--cases", write("cases.json", {"cases": [CASE, lost, few]}), "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]

    assert {name: each["status"] for name, each in plans.items()} == {
        "one": "ok",
        "lost": "unrecoverable",
        "few": "infeasible",
    }
    assert plans["one"]["claims"]["total_bytes"] == 20
    assert plans["one"]["cost_matrix"][0] == [4, 16, 20, 20]
    assert plans["lost"]["lost"] == [{"tensor": "w", "offset": [12], "size": [2]}]


def test_one_case_by_its_id(write, capsys):
    path = write("cases.json", {"cases": [CASE, CASE | {"id": "two"}]})
    assert run(["plan", "--cases", path, "--case", "two", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["plans"]) == ["two"]
    assert run(["plan", "--cases", path, "--case", "three", "--json"]) == 2
    assert "no case 'three'" in capsys.readouterr().err


def test_two_layouts_show_who_keeps_sends_and_receives(write, capsys):
    files = [write("old.json", OLD), write("new.json", NEW)]
    assert run(["plan", *files, "--bandwidth", "1K"]) == 0
    shown = capsys.readouterr().out

    assert "moves 20 B of 56 B" in shown
    assert "expected time" in shown
    assert run(["plan", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["host"] == ["d0", "d1", "d2"]


def test_devices_that_the_new_layout_does_not_name_only_send(write, capsys):
    new = NEW | {"devices": [{"id": f"x{k}", "node": "n7"} for k in range(3)]}
    assert run(["plan", write("old.json", OLD), write("new.json", new), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["host"] == ["x0", "x1", "x2"]
    assert plan["claims"]["total_bytes"] == plan["claims"]["inter_node_bytes"] == 56


def test_a_memory_limit_that_cannot_be_kept_is_said(write, capsys):
    case = CASE | {"limits": {"chunk_bytes": 4, "peak_extra_bytes": 0}}
    assert run(["plan", "--cases", write("case.json", case), "--json"]) == 0
    assert "peak_extra_bytes is 0" in capsys.readouterr().err


def spoiled(**more) -> dict:
    return CASE | more


@pytest.mark.parametrize(
    ("case", "key"),
    [
        (spoiled(tensors={"w": {"shape": [14], "dtype": "float33"}}), "tensors.w.dtype"),
        (spoiled(tensors={"w": {"shape": [-1], "dtype": "int8"}}), "tensors.w.shape"),
        (spoiled(tensors={"w": {"alias_of": "v"}}), "tensors.w.alias_of"),
        (spoiled(tensors={"v": {"shape": [14], "dtype": "int8"}}), "prev.ranks[0].holds.w"),
        (spoiled(tensors={"w": {"shape": "x", "dtype": "int8"}}), "shape"),
        (spoiled(tensors={"w": {"shape": [2**40, 2**40], "dtype": "int8"}}), "tensors.w.shape"),
        (spoiled(devices=CASE["devices"] * 2), "devices[4].id"),
        (spoiled(devices=[{"id": "d0", "node": "n", "state": "gone"}]), "devices[0].state"),
        (spoiled(prev={"ranks": [{"holds": {}}]}), "prev.ranks[0]"),
        (spoiled(prev={"ranks": [{"device": "x", "holds": {}}]}), "prev.ranks[0].device"),
        (spoiled(prev={"ranks": [{"device": "d0", "holds": {}}] * 2}), "prev.ranks[1].device"),
        (spoiled(curr={"ranks": [{"holds": {"w": [[[10], [5]]]}}]}), "curr.ranks[0].holds.w[0]"),
        (spoiled(curr={"ranks": [{"holds": {"w": [[[0, 0], [5]]]}}]}), "curr.ranks[0].holds.w[0]"),
        (spoiled(curr={"ranks": [{"holds": {"w": [[[0], [5]], [[4], [5]]]}}]}), "curr.ranks[0].holds.w"),
        (spoiled(curr={"ranks": CASE["curr"]["ranks"], "groups": [[0, 3]]}), "curr.groups"),
        (spoiled(curr={"ranks": CASE["curr"]["ranks"], "groups": [[0], [0]]}), "curr.groups"),
        (spoiled(objective=["speed"]), "objective[0]"),
        (spoiled(objective=[]), "objective"),
        (spoiled(objective=[{"weights": {"bytes": -1}}]), "objective[0].weights.bytes"),
        (spoiled(objective=[{"weights": 3}]), "objective[0]"),
        (spoiled(limits={"chunk_bytes": 0}), "limits.chunk_bytes"),
        (spoiled(limits={"chunk_bytes": 2}), "chunk_bytes 2"),
        ({"id": "one"}, "tensors"),
    ],
)
def test_a_spoiled_case_is_refused_with_file_case_and_key(write, capsys, case, key):
    path = write("case.json", case)
    assert run(["plan", "--cases", path, "--json"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert key in said.err
    assert "one" in said.err
    assert path in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("text", ["", "{", "3", "[1]", '{"cases": 1}', '{"cases": [{}]}', "[" * 100_000])
def test_what_is_no_case_file_is_refused(write, capsys, text):
    assert run(["plan", "--cases", write("case.json", text)]) == 2
    assert "case.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["a.json"], ["a.json", "b.json", "--cases", "c.json"], ["a.json", "b.json", "--case", "x"]]
)
def test_wrong_arguments_are_refused(arguments, capsys):
    assert run(["plan", *arguments]) == 2
    assert "fix:" in capsys.readouterr().err


@pytest.mark.parametrize("bandwidth", ["0", "fast", "-1"])
def test_a_wrong_bandwidth_is_refused(write, capsys, bandwidth):
    files = [write("old.json", OLD), write("new.json", NEW)]
    assert run(["plan", *files, f"--bandwidth={bandwidth}"]) == 2
    assert "bandwidth" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "file", "key"),
    [
        (OLD | {"format": "x"}, NEW, "old.json", "format"),
        (OLD | {"workers": NEW["workers"]}, NEW, "old.json", "workers[0]"),
        (OLD | {"workers": OLD["workers"][:1] * 2}, NEW, "old.json", "workers[1].id"),
        (OLD, NEW | {"groups": [[7]]}, "new.json", "groups"),
        (OLD, NEW | {"tensors": {"w": {"shape": [2], "dtype": "int8"}}}, "new.json", "tensors"),
        (OLD, NEW | {"workers": [{"holds": {"v": []}}]}, "new.json", "workers[0].holds.v"),
    ],
)
def test_a_spoiled_layout_is_refused_with_file_and_key(write, capsys, old, new, file, key):
    assert run(["plan", write("old.json", old), write("new.json", new)]) == 2
    said = capsys.readouterr().err
    assert file in said
    assert key in said
