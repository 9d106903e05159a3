"""What every transport between devices must do, as seen by one of its processes.

A scenario is called in each of `SIZE` processes with a function that makes this process's transport; devices are
called d0, d1, ... It may be run in any world of processes: started here, or by mpirun (`python -m` this module).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest
import torch

from slurm_elastic.errors import MigrationCancelled, PeerLost
from slurm_elastic.migrate.transport import Message, Transport
from slurm_elastic.migrate.transport_parts import bits

SIZE = 3
WAIT_S = 60.0
Make = Callable[[], Transport]


def name(rank: int) -> str:
    return f"d{rank}"


def values(sender: int, receiver: int, size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What the two agree on without a word."""
    generator = torch.Generator().manual_seed(1000 * sender + receiver)
    # Not of the dtype's own random numbers: all bits count, those of NaN too.
    width = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (*size, width), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).squeeze(-1)


def others(rank: int) -> list[int]:
    return [peer for peer in range(SIZE) if peer != rank]


def exchange(transport: Transport, rank: int, size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    """Everybody to everybody, and a check."""
    sends = [Message(name(peer), [bits(values(rank, peer, size, dtype))]) for peer in others(rank)]
    got = {peer: torch.zeros(size, dtype=dtype) for peer in others(rank)}
    receives = [Message(name(peer), [bits(tensor)]) for peer, tensor in got.items()]

    transport.post(sends, receives).wait(WAIT_S)

    for peer, tensor in got.items():
        assert torch.equal(bits(tensor), bits(values(peer, rank, size, dtype))), f"from {peer}: {size} {dtype}"


def everybody_to_everybody(make: Make, rank: int) -> None:
    transport = make()
    for size in ((), (1,), (3,), (70_000,), (1000, 3, 7), (3_000_001,), (0, 4)):
        exchange(transport, rank, size)
    transport.close()


def every_dtype_keeps_its_bits(make: Make, rank: int) -> None:
    transport = make()
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.complex64, torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64),
        *(torch.uint32, torch.uint16, torch.uint8, torch.bool),
    ):
        for size in ((), (5,), (3, 7)):
            exchange(transport, rank, size, dtype)
    transport.close()


def strides_of_the_two_ends_may_differ(make: Make, rank: int) -> None:
    transport = make()
    before = transport.traffic.sent.total()
    size = (1200, 900)  # larger than a slot, and than what is packed
    whole = torch.full((1200, 2000), -1.0)
    there = whole[:, 100:1000]
    if rank == 0:
        transport.post([Message("d1", [bits(values(0, 1, size).t().contiguous().t())])], []).wait(WAIT_S)
    elif rank == 1:
        transport.post([], [Message("d0", [bits(there)])]).wait(WAIT_S)

        assert torch.equal(bits(there.contiguous()), bits(values(0, 1, size)))
        assert torch.all(whole[:, :100] == -1) and torch.all(whole[:, 1000:] == -1)
    assert transport.traffic.sent.total() - before == (1200 * 900 * 4 if rank == 0 else 0)
    transport.close()


def a_message_has_many_parts_of_any_size(make: Make, rank: int) -> None:
    transport = make()
    sizes: list[tuple[int, ...]] = [(index % 17, 3) for index in range(400)]
    sizes += [(600_000,), (7,), (1_000, 1_000), (), (150_000,), (150_001,), (0,), (2,)]
    peer, source = (rank + 1) % SIZE, (rank - 1) % SIZE
    out = [bits(values(rank, index, size)) for index, size in enumerate(sizes)]
    got = [torch.zeros(size) for size in sizes]

    transport.post([Message(name(peer), out)], [Message(name(source), [bits(one) for one in got])]).wait(WAIT_S)

    for index, (one, size) in enumerate(zip(got, sizes, strict=True)):
        assert torch.equal(bits(one), bits(values(source, index, size))), f"part {index}"
    transport.close()


def messages_of_a_channel_stay_in_order_and_may_be_early(make: Make, rank: int) -> None:
    """d0 sends three messages in three transfers; d1 takes two of them in one, while d2 is not there at all."""
    transport = make()
    size = (400_000,)
    if rank == 0:
        for number in range(3):
            transport.post([Message("d1", [bits(values(number, 9, size))])], []).wait(WAIT_S)
    elif rank == 1:
        got = [torch.zeros(size) for _ in range(3)]
        receives = [Message("d0", [bits(one)]) for one in got]
        transport.post([], receives[:2]).wait(WAIT_S)
        transport.post([], receives[2:]).wait(WAIT_S)
        for number, one in enumerate(got):
            assert torch.equal(bits(one), bits(values(number, 9, size)))
    transport.close()


def two_transfers_may_be_under_way(make: Make, rank: int) -> None:
    transport = make()
    size = (100_000, 3)
    peer, source = (rank + 1) % SIZE, (rank - 1) % SIZE
    got = [torch.zeros(size), torch.zeros(size)]
    transfers = [
        transport.post(
            [Message(name(peer), [bits(values(rank, number, size).t())])], [Message(name(source), [bits(one.t())])]
        )
        for number, one in enumerate(got)
    ]
    for transfer in transfers:
        transfer.wait(WAIT_S)

    for number, one in enumerate(got):
        assert torch.equal(bits(one), bits(values(source, number, size)))
    transport.close()


def what_was_sent_arrives_after_the_sender_left(make: Make, rank: int) -> None:
    transport = make()
    size = (200_000,)  # in flight when the sender is through
    got = torch.zeros(size)
    if rank == 0:
        transport.post([Message("d1", [bits(values(0, 1, size))])], []).wait(WAIT_S)
    elif rank == 1:
        time.sleep(0.3)  # so that the sender is likely to be gone; right in any case
        transport.post([], [Message("d0", [bits(got)])]).wait(WAIT_S)

        assert torch.equal(bits(got), bits(values(0, 1, size)))
    transport.close()


def counts_are_exact(make: Make, rank: int) -> None:
    transport = make()
    exchange(transport, rank, (1001,), torch.bfloat16)

    expected = {name(peer): 2002 for peer in others(rank)}
    assert transport.traffic.sent == expected
    assert transport.traffic.received == expected
    transport.close()


def a_silent_peer_is_given_up(make: Make, rank: int) -> None:
    """d1 never sends; d0 waits a moment only. d2 waits for d0, which gives up: that frees it."""
    transport = make()
    if rank == 0:
        with pytest.raises(PeerLost) as lost:
            transport.post([], [Message("d1", [torch.zeros(10)])]).wait(0.5)
        assert lost.value.peer == "d1"
        transport.abort()
    elif rank == 2:
        with pytest.raises(PeerLost) as lost:
            transport.post([], [Message("d0", [torch.zeros(10)])]).wait(WAIT_S)
        assert lost.value.peer == "d0"
        transport.abort()
    else:
        with pytest.raises(PeerLost):
            transport.post([], [Message("d0", [torch.zeros(10)])]).wait(WAIT_S)
        transport.abort()
    transport.close()


def a_wait_can_be_called_off(make: Make, rank: int) -> None:
    """By another thread of d0; the peers that wait for d0 are freed too."""
    transport = make()
    if rank == 0:
        timer = threading.Timer(0.3, transport.abort)
        timer.start()
        with pytest.raises(MigrationCancelled):
            transport.post([], [Message("d1", [torch.zeros(10)])]).wait(WAIT_S)
        with pytest.raises(MigrationCancelled):
            transport.post([], [])
        timer.join()
    else:
        with pytest.raises(PeerLost) as lost:
            transport.post([], [Message("d0", [torch.zeros(10)])]).wait(WAIT_S)
        assert lost.value.peer == "d0"
    transport.close()


def a_dead_peer_is_noticed(make: Make, rank: int) -> None:
    """d1 dies in the middle of a message."""
    transport = make()
    if rank == 1:
        transport.post([Message(name(peer), [torch.zeros(10)]) for peer in others(1)], []).wait(WAIT_S)
        os.kill(os.getpid(), 9)
    began = time.monotonic()
    with pytest.raises(PeerLost) as lost:
        got = [torch.zeros(10), torch.zeros(5_000_000)]
        transport.post([], [Message("d1", [got[0]])]).wait(WAIT_S)
        transport.post([], [Message("d1", [got[1]])]).wait(WAIT_S)
    assert lost.value.peer == "d1"
    assert time.monotonic() - began < WAIT_S / 2
    transport.abort()
    transport.close()


def a_death_half_way_frees_both_ends(make: Make, rank: int) -> None:
    """d1 dies while it sends to d0 and receives from d2, both too much to be through by then."""
    transport = make()
    much = torch.zeros(60_000_000)
    exchange(transport, rank, (3,))
    sends, receives = [], []
    if rank == 1:
        sends, receives = [Message("d0", [bits(much)])], [Message("d2", [bits(torch.empty_like(much))])]
    elif rank == 0:
        receives = [Message("d1", [bits(much)])]
    else:
        sends = [Message("d1", [bits(much)])]
    transfer = transport.post(sends, receives)
    if rank == 1:
        time.sleep(0.01)
        os.kill(os.getpid(), 9)
    began = time.monotonic()
    with pytest.raises(PeerLost) as lost:
        transfer.wait(WAIT_S)
    assert lost.value.peer == "d1"
    assert time.monotonic() - began < WAIT_S / 2
    transport.abort()
    transport.close()


GOOD = (
    everybody_to_everybody,
    every_dtype_keeps_its_bits,
    strides_of_the_two_ends_may_differ,
    a_message_has_many_parts_of_any_size,
    messages_of_a_channel_stay_in_order_and_may_be_early,
    two_transfers_may_be_under_way,
    what_was_sent_arrives_after_the_sender_left,
    counts_are_exact,
)
BAD = (a_silent_peer_is_given_up, a_wait_can_be_called_off)
DEADLY = (a_dead_peer_is_noticed, a_death_half_way_frees_both_ends)


def run_in_mpi() -> None:
    """This process is one of mpirun's."""
    from mpi4py import MPI

    from slurm_elastic.migrate.transport_mpi import MpiTransport

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    for scenario in (*GOOD, *BAD):
        communicator = world.Dup()
        scenario(lambda: MpiTransport({name(peer): peer for peer in range(SIZE)}, communicator), rank)  # noqa: B023
        world.Barrier()
        if rank == 0:
            print(f"passed {scenario.__name__}", flush=True)


if __name__ == "__main__":
    run_in_mpi()
