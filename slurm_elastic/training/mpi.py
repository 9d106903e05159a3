"""Workers of one MPI.COMM_WORLD (launcher: mpi). mpi4py is the script's import; only its communicator comes here."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from slurm_elastic.errors import UserMistake
from slurm_elastic.training.environment import Ranks


def ranks_of(communicator: Any, launched: int) -> Ranks:
    """MPI's ranks. `launched`: how many processes the launcher started, 0 if unknown. Collective.

    Raises UserMistake when each process is a world of its own: then launcher and MPI library do not fit.
    """
    size = communicator.Get_size()
    if launched > 1 and size == 1:
        raise UserMistake(
            f"{launched} processes were started, but MPI.COMM_WORLD has only this one",
            fix="run.mpi in run.yaml must name what this MPI was built for: `srun --mpi=list` (pmix, pmi2, ...)",
        )
    here = communicator.allgather(socket.gethostname())
    rank = communicator.Get_rank()
    return Ranks(
        global_rank=rank,
        world_size=size,
        local_rank=here[:rank].count(here[rank]),
        local_world_size=here.count(here[rank]),
    )


def store(communicator: Any) -> Any:
    """A TCPStore on MPI rank 0, announced to all by a broadcast: no port has to be agreed on beforehand."""
    is_host = communicator.Get_rank() == 0
    size = communicator.Get_size()
    one_node = len(set(communicator.allgather(socket.gethostname()))) == 1
    host = "127.0.0.1" if one_node else socket.gethostbyname(socket.gethostname())
    if is_host:
        served = _store(host, 0, size, is_host)
        communicator.bcast((host, served.port), root=0)
        return served
    address, port = communicator.bcast(None, root=0)
    return _store(address, port, size, is_host)


def _store(host: str, port: int, size: int, is_host: bool) -> Any:
    return dist.TCPStore(host, port, size, is_master=is_host, wait_for_workers=False)  # type: ignore[attr-defined]


def sum_in_place(communicator: Any, tensor: torch.Tensor) -> None:
    """Replace a contiguous CPU tensor by its sum over all ranks."""
    array = tensor.numpy()
    total = np.empty_like(array)
    communicator.Allreduce(array, total)
    tensor.copy_(torch.from_numpy(total))
