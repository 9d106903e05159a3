from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.config_model import Batch
from slurm_elastic.errors import UserMistake
from slurm_elastic.machine.batch import batch_plan, fits
from slurm_elastic.machine.sizes import SizePolicy, allowed_sizes, best_size

WORLDS = st.integers(1, 20).flatmap(lambda w: st.tuples(st.just(w), st.integers(w, 90), st.integers(0, 12)))


@given(WORLDS)
def test_every_sample_belongs_to_one_rank_and_shares_differ_by_at_most_one(world):
    workers, size, micro = world
    plan = batch_plan(workers, Batch(global_batch_size=size, micro_batch_size=micro))

    positions = [p for rank in range(workers) for p in plan.samples(rank)]
    assert positions == list(range(size))
    assert max(plan.shares) - min(plan.shares) <= 1
    assert (max(plan.shares), min(plan.shares)) == (plan.largest_share, plan.smallest_share)


@given(WORLDS)
def test_every_rank_runs_the_same_number_of_micro_steps_and_none_is_too_large(world):
    workers, size, micro = world
    plan = batch_plan(workers, Batch(global_batch_size=size, micro_batch_size=micro))

    assert plan.micro_steps == math.ceil(math.ceil(size / workers) / (micro or plan.largest_share))
    for rank in range(workers):
        parts = plan.micro_batches(rank)
        assert len(parts) == plan.micro_steps
        assert all(len(part) <= plan.micro_batch for part in parts)
        assert [p for part in parts for p in part] == list(plan.samples(rank))


@given(WORLDS)
def test_weighted_means_averaged_over_workers_are_the_mean_of_the_whole_batch(world):
    workers, size, micro = world
    plan = batch_plan(workers, Batch(global_batch_size=size, micro_batch_size=micro))
    value = [(7 * p) % 11 / 3 for p in range(size)]

    total = sum(
        plan.weight(len(part)) * (sum(value[p] for p in part) / len(part))
        for rank in range(workers)
        for part in plan.micro_batches(rank)
        if part
    )
    assert total / workers == pytest.approx(sum(value) / size, rel=1e-12)


def test_more_workers_than_samples_are_refused():
    with pytest.raises(UserMistake, match="9 workers, but the global batch has only 8"):
        batch_plan(9, Batch(global_batch_size=8))


def test_uneven_false_takes_only_divisors():
    batch = Batch(global_batch_size=12, uneven=False)

    assert [w for w in range(1, 14) if fits(w, batch)] == [1, 2, 3, 4, 6, 12]


def test_scale_batch_keeps_the_share_of_each_worker_and_scales_the_rate():
    batch = Batch(global_batch_size=16, policy="scale_batch", lr_rule="sqrt")
    plan = batch_plan(16, batch, reference_workers=4)

    assert (plan.global_batch, set(plan.shares), plan.lr_factor) == (64, {4}, 2.0)
    linear = Batch(global_batch_size=16, policy="scale_batch", lr_rule="linear")
    assert batch_plan(8, linear, reference_workers=4).lr_factor == 2.0


@given(st.integers(1, 64), st.integers(1, 500), st.floats(0, 0.5), st.booleans())
def test_tolerance_never_leaves_its_bounds(workers, size, tolerance, uneven):
    batch = Batch(global_batch_size=size, policy="tolerance", tolerance=tolerance, uneven=uneven)
    if not fits(workers, batch):
        assert not uneven or workers > size
        return
    plan = batch_plan(workers, batch)
    assert abs(plan.global_batch - size) <= size * tolerance
    assert min(plan.shares) >= 1
    assert uneven or len(set(plan.shares)) == 1


def test_tolerance_takes_the_nearest_even_batch():
    batch = Batch(global_batch_size=100, policy="tolerance", tolerance=0.1)

    assert [batch_plan(w, batch).global_batch for w in (4, 7, 8, 30)] == [100, 98, 104, 90]


def policy(**given) -> SizePolicy:
    return SizePolicy(**({"min_nodes": 2, "max_nodes": 9, "batch": Batch()} | given))


def test_the_step_counts_from_min_nodes():
    assert allowed_sizes(policy(increment=3)) == (2, 5, 8)


def test_discrete_values_are_all_there_is():
    assert allowed_sizes(policy(discrete=(8, 4, 2))) == (2, 4, 8)


def test_sizes_that_do_not_divide_the_batch_are_left_out_when_uneven_is_false():
    batch = Batch(global_batch_size=24, uneven=False)

    assert allowed_sizes(policy(batch=batch, workers_per_node=2)) == (2, 3, 4, 6)


@given(st.integers(0, 20), st.integers(1, 5), st.integers(1, 9), st.integers(0, 11))
def test_the_best_size_is_the_largest_allowed_one_that_fits(available, step, low, more):
    sizes = policy(min_nodes=low, max_nodes=low + more, increment=step)
    best = best_size(available, sizes)

    assert best == max((n for n in allowed_sizes(sizes) if n <= available), default=None)
    assert (best is None) == (available < low)
