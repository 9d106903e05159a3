"""How long sharded state takes to its new layout: `python -m benchmarks.state_movement [--gib 1 0.25] [--json]`.

150 tensors over four processes of this machine, resized 4→3, 3→4, 4→2, 2→4 (cut along their rows), 2→4 along their
columns (tensor parallel), and from two to two others: there all bytes travel and nothing is copied in place. Ours
directly, by shared memory (as workers of a node do) and by gloo (as between nodes), checksums and all; against DCP to
memory (tmpfs) and to disk with fsync, against everything gathered on one rank with torch.save, and against gloo alone
with the same bytes ready in one buffer a pair. All in turn, in the same processes; every destination is memory that was
never touched. Medians; each result is checked, outside of the time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

SIZE = 4
TENSORS = 150
COLUMNS = 1024
# name, parts before, parts after, the axis they are cut along, whether the first ones leave
RESIZES = (
    ("4→3", 4, 3, 0, False),
    ("3→4", 3, 4, 0, False),
    ("4→2", 4, 2, 0, False),
    ("2→4", 2, 4, 0, False),
    ("TP 2→4", 2, 4, 1, False),
    ("2 away→2", 2, 2, 0, True),
)
CHUNK = 32 << 20
SHARED, GLOO, RAW, RAW_WARM = "shared memory", "gloo", "raw gloo", "raw gloo, warm"
TMPFS, DISK, GATHER = "DCP tmpfs", "DCP disk", "torch.save"
WAYS = (SHARED, GLOO, RAW, RAW_WARM, TMPFS, DISK, GATHER)


def worker(rank: int, port: int, options: argparse.Namespace, disk: Path, results: Any) -> None:
    """One of the four: everything in the same order in all of them."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from benchmarks import state_movement_ways as ways
    from slurm_elastic.migrate.transport_shared import SharedMemoryTransport
    from slurm_elastic.migrate.transport_torch import TorchTransport

    torch.set_num_threads(1)
    timeout = timedelta(seconds=120)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    assert dist.group.WORLD
    names = [ways.device(peer) for peer in range(SIZE)]
    shared = SharedMemoryTransport(names[rank])
    store.set(names[rank], shared.address)
    shared.introduce({name: store.get(name).decode() for name in names}, 60)
    gloo = TorchTransport({name: peer for peer, name in enumerate(names)}, dist.group.WORLD)
    meshes = {count: DeviceMesh("cpu", list(range(count))) for count in (2, 3, 4)}
    memory = Path("/dev/shm") / disk.name
    by_dcp = {TMPFS: ways.ByDcp(memory, meshes), DISK: ways.ByDcp(disk / "dcp", meshes)}

    for gib in options.gib:
        rows = max(8, round(gib * 2**30 / TENSORS / COLUMNS / ways.DTYPE.itemsize))
        for name, before, after, axis, away in options.resizes:
            move = ways.Move(name, TENSORS, (rows, COLUMNS), before, after, axis, away)
            made = ways.plan_of(move, SIZE, options.chunk)
            host = made.host.index(names[rank]) if names[rank] in made.host else None
            for way in [way for _ in range(options.repeats) for way in options.ways]:
                box = move.box(after, rank) if rank < after else None
                if way in (SHARED, GLOO):
                    taken_s, new = ways.direct(move, made, rank, shared if way == SHARED else gloo)
                    box = None if host is None else move.box(after, host)
                elif way in by_dcp:
                    taken_s, new = by_dcp[way](move, rank)
                elif way == GATHER:
                    taken_s, new = ways.gather_save_scatter(move, rank, memory.with_suffix(".pt"))
                else:
                    taken_s, new, box = ways.raw(made, move, rank, way == RAW_WARM), {}, None
                if way not in (RAW, RAW_WARM):
                    ways.check(move, new, box)
                del new
                if rank == 0:
                    moved = sum(ways.bytes_by_pair(made).values())
                    results.put((gib, name, way, taken_s, moved))
    print(f"rank {rank}: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB at most", flush=True)
    shared.close()


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(argv)
    import torch.distributed as dist

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.checkpoint", "torch.distributed.tensor", "scipy.optimize"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    results = context.SimpleQueue()
    expected = len(options.gib) * len(options.resizes) * options.repeats * len(options.ways)
    with tempfile.TemporaryDirectory(dir=options.disk) as disk:
        processes = [
            context.Process(target=worker, args=(rank, store.port, options, Path(disk), results))
            for rank in range(SIZE)
        ]
        for process in processes:
            process.start()
        found = collect(results, expected, processes)
        for process in processes:
            process.join()
    table = summary(found, options)
    print(json.dumps(table, indent=1) if options.json else shown(table))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, nargs="+", default=[1.0, 0.25], help="sizes of the state")
    parser.add_argument("--resizes", nargs="+", choices=[resize[0] for resize in RESIZES])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--chunk", type=int, default=CHUNK, help="bytes a device sends, and receives, in one step")
    parser.add_argument("--disk", default=None, help="a directory on a disk")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    options.resizes = [resize for resize in RESIZES if resize[0] in (options.resizes or [name for name, *_ in RESIZES])]
    return options


def collect(results: Any, expected: int, processes: list[Any]) -> list[tuple[float, str, str, float, int]]:
    found: list[tuple[float, str, str, float, int]] = []
    while len(found) < expected:
        ready = multiprocessing.connection.wait([results._reader, *(process.sentinel for process in processes)], 600)
        if results._reader in ready:
            found.append(results.get())
        elif not ready or any(process.exitcode for process in processes):
            for process in processes:
                process.kill()
            raise SystemExit("a process failed")
    return found


def summary(found: list[tuple[float, str, str, float, int]], options: argparse.Namespace) -> list[dict[str, Any]]:
    table = []
    for gib in options.gib:
        for name, *_ in options.resizes:
            times: dict[str, list[float]] = {}
            moved = 0
            for one_gib, one_name, way, taken_s, moved_bytes in found:
                if (one_gib, one_name) == (gib, name):
                    times.setdefault(way, []).append(taken_s)
                    moved = moved_bytes
            median = {way: statistics.median(each) for way, each in times.items()}
            table.append(
                {"gib": gib, "resize": name, "moved_bytes": moved, "median_s": median, "ratios": ratios(median)}
            )
    return table


def ratios(median: dict[str, float]) -> dict[str, float]:
    """How many times as long the other one takes."""
    pairs = {
        "DCP tmpfs / shared memory": (TMPFS, SHARED),
        "DCP tmpfs / gloo": (TMPFS, GLOO),
        "raw gloo / gloo": (RAW, GLOO),
        "gloo / shared memory": (GLOO, SHARED),
    }
    return {name: median[a] / median[b] for name, (a, b) in pairs.items() if a in median and b in median}


def shown(table: list[dict[str, Any]]) -> str:
    lines = [f"load {os.getloadavg()[0]:.1f}"]
    for row in table:
        lines.append(f"{row['gib']:g} GiB {row['resize']}: {row['moved_bytes'] / 2**20:.0f} MiB must move")
        lines.append("   " + " · ".join(f"{way} {seconds:.3f} s" for way, seconds in row["median_s"].items()))
        lines.append("   " + " · ".join(f"{name} {ratio:.2f}" for name, ratio in row["ratios"].items()))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
