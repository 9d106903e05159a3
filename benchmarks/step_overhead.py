"""Per-step cost of agreement and ledger on the critical path: `python -m benchmarks.step_overhead [--world N]`.

How long `commit` holds the training up. Between boundaries there are STEP_S of compute, so that the collective has the
time it has in life, and an all_reduce as of gradients: there ranks wait for the slowest one in life, too. A tiny torch
operation, timed after the same compute, is shown beside it for scale: after a step the caches are cold.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 400
STEP_S = 0.01
GLOBAL_BATCH = 512


def worker(rank: int, world: int, port: int, directory: Path, results: Any) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    import torch
    import torch.distributed as dist

    import slurm_elastic.training as elastic

    torch.set_num_threads(1)
    run = elastic.init(seed=0, directory=directory, global_batch_size=GLOBAL_BATCH)
    boundary_s: list[float] = []
    loss = torch.ones(())
    matrix, gradient = torch.randn(128, 128), torch.ones(1000)
    empty_s: list[float] = []
    batches = run.steps(run.data(1_000_000, steps=STEPS))
    for batch in batches:
        compute(matrix, STEP_S)
        dist.all_reduce(gradient)
        began = time.perf_counter()
        batch.add_loss(loss)
        batch.commit()
        boundary_s.append(time.perf_counter() - began)
        compute(matrix, STEP_S)
        began = time.perf_counter()
        loss.neg()
        empty_s.append(time.perf_counter() - began)
    if rank == 0:
        results.put((boundary_s[10:], empty_s[10:]))
    run.close()


def compute(matrix: Any, seconds: float) -> None:
    """Keep the processor as busy as a training step does."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        matrix @ matrix


def measure(world: int) -> tuple[list[float], list[float]]:
    """Seconds of rank 0 per boundary, and per one tiny torch operation at the same place."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as directory, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        probe.close()
        processes = [
            context.Process(target=worker, args=(rank, world, port, Path(directory), results)) for rank in range(world)
        ]
        for process in processes:
            process.start()
        found: tuple[list[float], list[float]] = results.get(timeout=120)
        for process in processes:
            process.join(30)
    return found


def main(say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, default=2)
    options = parser.parse_args()
    boundary_s, empty_s = measure(options.world)
    p95 = sorted(boundary_s)[int(0.95 * len(boundary_s))]
    say(
        f"world {options.world}, global batch {GLOBAL_BATCH}: boundary "
        f"median {statistics.median(boundary_s) * 1e3:.3f} ms, p95 {p95 * 1e3:.3f} ms (target 0.2 ms); "
        f"one tiny torch operation there: {statistics.median(empty_s) * 1e3:.3f} ms"
    )


if __name__ == "__main__":
    main()
