"""Level 0: a torchrun script that knows nothing of slurm-elastic. It is killed and started again at another size.

All it needs is what torchrun asks of every script: to save now and then, and to go on from what it saved.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "200"))
CHECKPOINT = Path(os.environ.get("CHECKPOINT", "level0-checkpoint.pt"))


def main() -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    start = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(state["model"])
        start = state["step"]

    for step in range(start, STEPS):
        inputs = torch.randn(8, 16)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 10 == 0 and dist.get_rank() == 0:
            draft = CHECKPOINT.with_suffix(".draft")
            torch.save({"model": model.state_dict(), "step": step + 1}, draft)
            draft.replace(CHECKPOINT)

    dist.barrier()
    if dist.get_rank() == 0:
        print("trained for", STEPS, "steps")


if __name__ == "__main__":
    main()
