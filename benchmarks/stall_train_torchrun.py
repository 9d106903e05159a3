"""The stall benchmark's training as a user of torchrun writes it: DDP, DCP, a file that names the last checkpoint."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.nn.parallel import DistributedDataParallel

from benchmarks.stall_problem import make_data, make_model
from benchmarks.stall_steps import GLOBAL_BATCH, PAUSE_S, SAVE_EVERY, log_step

CHECKPOINTS = "BENCHMARK_CHECKPOINTS"


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    inputs, targets = make_data()
    directory = Path(os.environ[CHECKPOINTS])
    step = load(directory, net, optimizer)
    while True:
        first = step * GLOBAL_BATCH % len(inputs)
        mine = torch.arange(first + rank, first + GLOBAL_BATCH, world) % len(inputs)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(inputs[mine]), targets[mine]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        time.sleep(PAUSE_S)
        step += 1
        if rank == 0:
            log_step(step, world)
        if step % SAVE_EVERY == 0:
            save(directory, step, net, optimizer)


def load(directory: Path, net: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> int:
    """Steps done in the checkpoint that `latest` names."""
    latest = directory / "latest"
    if not latest.exists():
        return 0
    step = int(latest.read_text())
    model_state, optimizer_state = get_state_dict(net, optimizer)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
    load_checkpoint(state, checkpoint_id=directory / str(step))
    set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return step


def save(directory: Path, step: int, net: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    model_state, optimizer_state = get_state_dict(net, optimizer)
    save_checkpoint({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=directory / str(step))
    if dist.get_rank() == 0:
        draft = directory / "latest.draft"
        draft.write_text(str(step))
        draft.replace(directory / "latest")
        shutil.rmtree(directory / str(step - 3 * SAVE_EVERY), ignore_errors=True)


if __name__ == "__main__":
    main()
