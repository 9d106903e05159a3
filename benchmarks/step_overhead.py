"""Per-step cost of agreement and ledger on the critical path: `python -m benchmarks.step_overhead [--world N]`.

Two clocks. `in place`: how long the boundary (commit and the decision after it) holds the training up while a real
step of STEP_S of compute runs between boundaries, so that the collective has the time it has in life. `whole`: median
step with the library minus median step of the same loop without it, alternating in one process.
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
STEP_S = 0.02
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

    import slurm_elastic.training as elastic

    torch.set_num_threads(1)
    run = elastic.init(seed=0, directory=directory, global_batch_size=GLOBAL_BATCH)
    boundary_s: list[float] = []
    loss = torch.ones(())
    batches = run.steps(run.data(1_000_000, steps=STEPS))
    for batch in batches:
        time.sleep(STEP_S)
        began = time.perf_counter()
        batch.add_loss(loss)
        batch.commit()
        boundary_s.append(time.perf_counter() - began)
    if rank == 0:
        results.put(boundary_s[10:])
    run.close()


def measure(world: int) -> list[float]:
    """Seconds per boundary of rank 0."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as directory, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        probe.close()
        processes = [
            context.Process(target=worker, args=(rank, world, port, Path(directory), results))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        found: list[float] = results.get(timeout=120)
        for process in processes:
            process.join(30)
    return found


def main(say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, default=2)
    options = parser.parse_args()
    found = sorted(measure(options.world))
    p95 = found[int(0.95 * len(found))]
    say(
        f"world {options.world}, global batch {GLOBAL_BATCH}: boundary "
        f"median {statistics.median(found) * 1e3:.3f} ms, p95 {p95 * 1e3:.3f} ms (target 0.2 ms)"
    )


if __name__ == "__main__":
    main()
