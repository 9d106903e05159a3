"""What agreement and ledger cost per step: `python -m benchmarks.step_overhead [--world N] [--work matmul|python]`.

Steps of fixed work and an all_reduce as of gradients (there ranks wait for the slowest one in life, too), one without
and one with a commit in turn. Told are how long `commit` itself holds the training up, and how much longer the whole
step is: what goes on beside the step costs, too, where no core is free for it. `matmul` lets other Python threads run
meanwhile, `python` does not. A tiny torch operation at the same place is shown for scale: the caches are cold there.
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
from typing import Any, NamedTuple

STEPS = 400
WARM_UP = 10
GLOBAL_BATCH = 512
MATMULS = 250  # of 128 x 128; about 10 ms, as the additions
ADDITIONS = 150_000


class Figures(NamedTuple):
    """Seconds per step on rank 0. `more`: the step with a commit minus the one without before it."""

    held: list[float]
    more: list[float]
    tiny: list[float]


def worker(rank: int, world: int, port: int, work: str, directory: Path, results: Any) -> None:
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
    loss, matrix, gradient = torch.ones(()), torch.randn(128, 128), torch.ones(1000)

    def compute() -> None:
        (multiply if work == "matmul" else add)(matrix)
        dist.all_reduce(gradient)

    found = Figures([], [], [])
    clock = time.perf_counter
    compute()
    for batch in run.steps(run.data(1_000_000, steps=STEPS)):
        began = clock()
        compute()
        without = clock() - began
        began = clock()
        batch.add_loss(loss)
        batch.commit()
        found.held.append(clock() - began)
        compute()
        found.more.append(clock() - began - without)
        began = clock()
        loss.neg()
        found.tiny.append(clock() - began)
    if rank == 0:
        results.put(Figures(*(values[WARM_UP:] for values in found)))
    run.close()


def multiply(matrix: Any) -> None:
    for _ in range(MATMULS):
        matrix @ matrix


def add(_: Any) -> int:
    total = 0
    for number in range(ADDITIONS):
        total += number
    return total


def measure(world: int, work: str) -> Figures:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as directory, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        probe.close()
        processes = [
            context.Process(target=worker, args=(rank, world, port, work, Path(directory), results))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        found: Figures = results.get(timeout=120)
        for process in processes:
            process.join(30)
    return found


def main(say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--work", choices=("matmul", "python"), default="matmul")
    options = parser.parse_args()
    found = measure(options.world, options.work)
    p95 = sorted(found.held)[int(0.95 * len(found.held))]
    say(
        f"world {options.world}, {options.work}, global batch {GLOBAL_BATCH}: commit "
        f"median {statistics.median(found.held) * 1e3:.3f} ms, p95 {p95 * 1e3:.3f} ms (target 0.2 ms); "
        f"the whole step {statistics.median(found.more) * 1e3:+.3f} ms; "
        f"one tiny torch operation there {statistics.median(found.tiny) * 1e3:.3f} ms; "
        f"load average {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
