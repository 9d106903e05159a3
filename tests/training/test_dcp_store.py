"""DCP saves and loads with real torch processes (gloo): resharding, full disks, kills, damage."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "checkpoint"))
from kill_points import killed_at_every_change

from slurm_elastic.checkpoint import dcp
from slurm_elastic.checkpoint.layout import draft_name
from slurm_elastic.checkpoint.manifest import About, Manifest, file_facts, verify, write_manifest
from slurm_elastic.checkpoint.publish import newest, publish
from slurm_elastic.errors import CheckpointError

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore:torch.distributed is disabled")]
WAIT_S = 60.0


def about(step: int = 10, world: int = 1, generation: int = 1) -> About:
    return About(step=step, generation=generation, world=world, cursor={"samples": step * 8}, config_hash="c0ffee")


def state(value: float = 1.0) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((6, 4), value), "bias": torch.arange(4.0) + value},
        "optimizer": {"state": {"0": {"exp_avg": torch.full((6, 4), value / 2)}}, "lr": 0.1 * value, "betas": (0.9, 1)},
    }


def saved(directory: Path, value: float = 1.0, step: int = 10) -> Path:
    draft = dcp.save(state(value), directory, about(step)).wait(WAIT_S).draft
    return publish(directory, draft, step)


def on_ranks(world: int, work: Callable[..., None], folder: Path, *args: Any) -> None:
    """Runs `work(rank, *args)` in `world` forked processes with a gloo group; all must succeed."""
    store = folder / f"store-{os.urandom(4).hex()}"
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(rank, world, store, work, args)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(WAIT_S)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in ranks] == [0] * world


def _rank(rank: int, world: int, store: Path, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), world), rank=rank, world_size=world)
    work(rank, *args)
    dist.destroy_process_group()


def test_what_was_saved_is_loaded_and_the_manifest_lists_every_file(tmp_path: Path) -> None:
    path = saved(tmp_path, 3.0)
    target = state(0.0)

    loaded = dcp.load(target, path)

    assert loaded == about()
    assert torch.equal(target["model"]["weight"], torch.full((6, 4), 3.0))
    assert target["optimizer"]["lr"] == pytest.approx(0.3) and target["optimizer"]["betas"] == (0.9, 1)
    assert set(verify(path).files) | {"manifest.json"} == {entry.name for entry in path.iterdir()}


def test_a_background_save_keeps_the_values_of_its_moment(tmp_path: Path) -> None:
    live = state(1.0)

    saving = dcp.save(live, tmp_path, about(), background=True)
    live["model"]["weight"].fill_(99.0)
    live["optimizer"]["lr"] = 99.0
    result = saving.wait(WAIT_S)

    target = state(0.0)
    dcp.load(target, publish(tmp_path, result.draft, 10))
    assert target["model"]["weight"].unique().tolist() == [1.0]
    assert target["optimizer"]["lr"] == 0.1
    assert saving.is_done and result.blocked_s <= result.save_s


def _save_sharded(rank: int, directory: Path, background: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    weight = distribute_tensor(torch.arange(21.0).reshape(7, 3), mesh, [Shard(0)])
    group = dcp.checkpoint_group()
    saving = dcp.save(
        {"weight": weight, "bias": torch.ones(3)}, directory, about(world=3), group, background=background
    )
    if background:
        weight.to_local().fill_(-1)
        dist.all_reduce(torch.ones(1))  # training goes on meanwhile
    result = saving.wait(WAIT_S)
    if rank == 0:
        publish(directory, result.draft, 10)


def _load_sharded(rank: int, path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    target = {"weight": distribute_tensor(torch.zeros(7, 3), mesh, [Shard(0)]), "bias": torch.zeros(3)}
    dcp.load(target, path, dcp.checkpoint_group())
    assert torch.equal(target["weight"].full_tensor(), torch.arange(21.0).reshape(7, 3))
    assert torch.equal(target["bias"], torch.ones(3))


@pytest.mark.parametrize("background", [False, True])
def test_shards_saved_by_three_ranks_load_on_two_and_on_one(tmp_path: Path, background: bool) -> None:
    directory = tmp_path / "checkpoints"
    on_ranks(3, _save_sharded, tmp_path, directory, background)

    found = newest(directory)
    assert found.checkpoint is not None and found.warnings == ()
    assert {name[:4] for name in found.checkpoint.manifest.files} == {"__0_", "__1_", "__2_", ".met"}
    on_ranks(2, _load_sharded, tmp_path, found.checkpoint.path)
    on_ranks(1, _load_sharded, tmp_path, found.checkpoint.path)


def _save_with_one_full_disk(rank: int, directory: Path) -> None:
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # "File too large": fails as a full disk does
    tensors = {f"weight{number}": torch.ones(200, 200) for number in range(4)}
    saving = dcp.save(tensors, directory, about(), dcp.checkpoint_group(), background=True)
    with pytest.raises(CheckpointError, match=r"step 10 .*rank 1: OSError.*File too large.*GB free"):
        saving.wait(WAIT_S)


def test_a_disk_that_is_full_for_one_rank_is_a_clear_error_on_all_and_nothing_is_lost(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    saved(directory, step=5)

    on_ranks(2, _save_with_one_full_disk, tmp_path, directory)

    found = newest(directory)
    assert found.checkpoint is not None and found.checkpoint.step == 5
    assert sorted(entry.name for entry in directory.iterdir()) == ["latest", "step-00000005"]


def _save_where_no_directory_can_be_made(rank: int, directory: Path) -> None:
    group = dcp.checkpoint_group()
    saving = dcp.save(state(), directory, about(), group, background=True)
    with pytest.raises(CheckpointError, match=r"rank 0 could not complete .*the directory: Not a directory"):
        saving.wait(WAIT_S)
    assert dcp.save(state(), directory, about(step=11), group, background=True).wait(WAIT_S).step == 11


def test_a_rank_that_cannot_begin_a_save_does_not_stay_behind_in_the_next(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    (directory / draft_name(1, 10)).write_text("in the way")

    on_ranks(3, _save_where_no_directory_can_be_made, tmp_path, directory)

    publish(directory, draft_name(1, 11), 11)
    assert newest(directory).warnings == ()


def test_killed_at_any_change_while_saving_the_one_before_loads(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"

    def before() -> None:
        shutil.rmtree(directory, ignore_errors=True)
        saved(directory, 1.0, step=5)

    kills = 0
    for kill in killed_at_every_change(before, lambda: saved(directory, 2.0, step=10)):
        kills = kill
        found = newest(directory)
        assert found.checkpoint is not None and found.warnings == ()
        target = state(0.0)
        dcp.load(target, found.checkpoint.path)
        assert target["model"]["bias"][0].item() == {5: 1.0, 10: 2.0}[found.checkpoint.step]

    assert kills > 10, "a save makes more changes than that: some kills did not fire"


def test_every_missing_tensor_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path)
    target = state(0.0)
    target["model"]["extra"] = torch.zeros(1)
    target["optimizer"]["state"]["1"] = {"exp_avg": torch.zeros(2)}

    with pytest.raises(CheckpointError, match=r"has no model\.extra, optimizer\.state\.1\.exp_avg"):
        dcp.load(target, path)


def test_an_optimizer_that_would_be_left_behind_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path)

    with pytest.raises(CheckpointError, match=r"also holds .*optimizer\.state\.0\.exp_avg"):
        dcp.load({"model": state()["model"]}, path)
    dcp.load({"model": state()["model"]}, path, allow_unused=True)


def test_another_shape_or_kind_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path)
    target = state(0.0)
    target["model"]["weight"] = torch.zeros(5, 4)
    with pytest.raises(CheckpointError, match=r"model\.weight has shape \(6, 4\) in the checkpoint and \(5, 4\) here"):
        dcp.load(target, path)

    target = state(0.0)
    target["optimizer"]["lr"] = torch.zeros(1)
    with pytest.raises(CheckpointError, match=r"optimizer\.lr is a plain value in the checkpoint"):
        dcp.load(target, path)


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("sprung",)


def test_what_is_not_plain_data_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"hook is not plain data"):
        dcp.save({"hook": Trap(), "weight": torch.ones(1)}, tmp_path, about()).wait(WAIT_S)


def test_a_pickle_smuggled_into_the_metadata_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path / "checkpoints")
    (path / ".metadata").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError, match="does not match its manifest"):
        dcp.load(state(), path)
    files = {entry.name: file_facts(entry) for entry in path.iterdir() if entry.name != "manifest.json"}
    write_manifest(path, Manifest(about=about(), files=files))

    with pytest.raises(CheckpointError, match=r"names (posix|os)\.mkdir"):
        dcp.load(state(), path)
    assert not (tmp_path / "sprung").exists()


def _save_on_the_training_group(rank: int, directory: Path) -> None:
    with pytest.raises(CheckpointError, match="a process group of its own"):
        dcp.save(state(), directory, about(), background=True)


def test_a_background_save_on_the_group_of_training_is_refused(tmp_path: Path) -> None:
    on_ranks(1, _save_on_the_training_group, tmp_path, tmp_path)
