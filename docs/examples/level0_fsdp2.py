"""Level 0 with FSDP2: as level0_ddp.py; rank 0 saves the gathered model, every size can load it."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

STEPS = int(os.environ.get("STEPS", "200"))
CHECKPOINT = Path(os.environ.get("CHECKPOINT", "level0-checkpoint.pt"))
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def main() -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    start = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, weights_only=True)
        set_model_state_dict(model, state["model"], options=WHOLE)
        start = state["step"]

    for step in range(start, STEPS):
        inputs = torch.randn(8, 16)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 10 == 0:
            state = {"model": get_model_state_dict(model, options=WHOLE), "step": step + 1}
            if dist.get_rank() == 0:
                draft = CHECKPOINT.with_suffix(".draft")
                torch.save(state, draft)
                draft.replace(CHECKPOINT)

    dist.barrier()
    if dist.get_rank() == 0:
        print("trained for", STEPS, "steps")


if __name__ == "__main__":
    main()
