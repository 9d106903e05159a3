"""Level 1 at its smallest: your loop and your checkpoints stay; one call per step tells when to save and leave."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slurm_elastic.training import elastic_event_detected

STEPS = 200
CHECKPOINT = Path(os.environ.get("CHECKPOINT", "own-checkpoint.pt"))


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A new file, then one rename: a kill at any point leaves the old or the new one."""
    if dist.get_rank() == 0:
        draft = CHECKPOINT.with_suffix(".draft")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, draft)
        draft.replace(CHECKPOINT)
    dist.barrier()


def main() -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    start = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]

    for step in range(start, STEPS):
        inputs = torch.randn(8, 16)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if elastic_event_detected():  # the same answer on every rank
            save(model, optimizer, step + 1)
            return
    save(model, optimizer, STEPS)


if __name__ == "__main__":
    main()
