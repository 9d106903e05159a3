"""Capture and parts in one process: names, ties, first values, buffers, plain values, and what a user did wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from slurm_elastic.errors import SlurmElasticError, UserMistake
from slurm_elastic.migrate.capture import Captured, capture
from slurm_elastic.migrate.capture_layout import Described, joined_aliases, known, layout, renamed
from slurm_elastic.migrate.capture_values import join, separate, tensor_names
from slurm_elastic.migrate.model import Box
from slurm_elastic.migrate.parts import Parts, construct
from slurm_elastic.migrate.parts_fill import fill
from slurm_elastic.migrate.parts_start import start
from slurm_elastic.migrate.parts_wanted import unwanted, wanted

CPU = torch.device("cpu")


class Tied(nn.Module):
    """Like a language model: the head is the embedding, unless this is a stage that has only one of them."""

    def __init__(self, *, is_tied: bool = True) -> None:
        super().__init__()
        self.head = nn.Linear(3, 5, bias=False)
        self.embed = nn.Embedding(5, 3)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.embed(tokens))
        return found


def tied_parts(_: object, *, is_tied: bool = True) -> Parts:
    model = Tied(is_tied=is_tied)
    return Parts(model, torch.optim.Adam(model.parameters(), lr=0.1))


def step(parts: Parts) -> None:
    assert parts.optimizer is not None
    parts.model(torch.tensor([1, 2])).sum().backward()
    parts.optimizer.step()
    parts.optimizer.zero_grad()


def refill(fresh: Parts, taken: Captured) -> dict[str, torch.Tensor]:
    """Fill from copies of what was captured, and return the whole tensors that are there now."""
    old = known([taken.described])
    asked = wanted(fresh, 0, old)
    assert unwanted(old, [asked]) == []
    fill(fresh, asked, old, {key: view.clone() for key, view in taken.renamed(asked.aliases).local.items()}, CPU)
    return {name: tensor for (name, _), tensor in capture(fresh.objects(), 0).local.items()}


def test_tied_tensors_are_held_once_also_in_the_optimizer_and_stay_tied() -> None:
    parts = construct(tied_parts, None)
    start(parts, 1, 0, CPU)
    step(parts)

    taken = capture(parts.objects(), 0)
    fresh = construct(tied_parts, None)
    refill(fresh, taken)

    assert [name for name in taken.described.tensors if name.startswith("model")] == ["model.embed.weight"]
    assert taken.described.aliases["model.head.weight"] == "model.embed.weight"
    assert taken.described.aliases["optimizer.head.weight.exp_avg"] == "optimizer.embed.weight.exp_avg"
    assert fresh.model.head.weight is fresh.model.embed.weight
    step(parts)
    step(fresh)
    assert torch.equal(fresh.model.embed.weight, parts.model.embed.weight)


def test_what_was_tied_can_be_held_apart_afterwards_and_the_other_way_round() -> None:
    def apart(world: object) -> Parts:
        return tied_parts(world, is_tied=False)

    parts = construct(tied_parts, None)
    start(parts, 1, 0, CPU)
    step(parts)
    fresh = construct(apart, None)
    refill(fresh, capture(parts.objects(), 0))
    again = construct(tied_parts, None)
    refill(again, capture(fresh.objects(), 0))

    assert fresh.model.head.weight is not fresh.model.embed.weight
    assert fresh.model.head.weight.data_ptr() != fresh.model.embed.weight.data_ptr()
    assert torch.equal(fresh.model.head.weight, parts.model.embed.weight)
    assert torch.equal(again.model.head.weight, parts.model.embed.weight)
    assert again.optimizer is not None
    assert set(again.optimizer.state[again.model.head.weight]) == {"step", "exp_avg", "exp_avg_sq"}


def test_aliases_of_both_sides_lead_to_one_name() -> None:
    assert joined_aliases([{"c": "b"}, {"b": "a"}, {"d": "c"}]) == {"b": "a", "c": "a", "d": "a"}
    model = Tied(is_tied=False)
    apart = capture({"model": model}, 0).described
    aliases = {"model.head.weight": "model.embed.weight"}

    found = layout([apart], 1, aliases)

    assert list(found.holds[0]) == ["model.embed.weight"] == list(found.tensors)
    assert list(renamed(apart, aliases).tensors) == ["model.embed.weight"]


def test_a_description_comes_back_from_json_as_it_was() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    described = capture({"model": model, "optimizer": optimizer}, 3, peers=[1, 2]).described

    again = msgspec.json.decode(msgspec.json.encode(described), type=Described)

    assert again == described
    assert layout([again], 4).holds[0] == {}
    assert layout([again], 4).holds[2] == layout([again], 4).holds[3] != {}


def test_views_share_memory_and_nothing_is_made_up() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())

    taken = capture({"model": model, "optimizer": optimizer}, 0)

    assert set(taken.described.tensors) == {"model.weight", "model.bias"}
    assert not optimizer.state
    assert taken.local["model.weight", Box((0, 0), (2, 2))].data_ptr() == model.weight.data_ptr()


def test_plain_values_keep_their_types_through_json() -> None:
    value = {
        "betas": (0.9, 0.999),
        "best": float("inf"),
        "milestones": {3: 1, 7: 2},
        "none": [None, True, "tensor", [], ()],
        "scale": torch.tensor(2.0),
    }
    tensors: dict[str, torch.Tensor] = {}

    plain = msgspec.json.decode(msgspec.json.encode(separate(value, "s", tensors)))

    assert tensor_names(plain) == ["s.scale"]
    assert join(plain, tensors) == value
    with pytest.raises(UserMistake, match=r"s\.odd is a set"):
        separate({"odd": {1}}, "s", {})


def test_settings_follow_the_parameters_and_tensors_among_them_move_too() -> None:
    def build(swapped: bool) -> Parts:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        groups: list[dict[str, Any]] = [
            {"params": model[0].parameters(), "lr": torch.tensor(0.5, device="cpu")},
            {"params": model[1].parameters(), "weight_decay": 0.25},
        ]
        return Parts(model, torch.optim.AdamW(groups[::-1] if swapped else groups, lr=0.125))

    parts = construct(build, False)
    start(parts, 1, 0, CPU)
    assert parts.optimizer is not None
    parts.optimizer.param_groups[0]["lr"].fill_(0.75)
    fresh = construct(build, True)
    refill(fresh, capture(parts.objects(), 0))

    assert fresh.optimizer is not None
    second, first = fresh.optimizer.param_groups
    assert first["lr"] == torch.tensor(0.75) and first["weight_decay"] != 0.25
    assert second["lr"] == 0.125 and second["weight_decay"] == 0.25


def test_first_values_do_not_depend_on_the_kind_of_rank_and_leave_the_callers_generator_alone() -> None:
    def stage(layers: tuple[str, ...]) -> Parts:
        return Parts(nn.ModuleDict({name: nn.Linear(4, 4) for name in layers}))

    torch.manual_seed(3)
    before = torch.get_rng_state()
    both, second = construct(stage, ("a", "b")), construct(stage, ("b",))
    start(both, 5, 0, CPU)
    start(second, 5, 0, CPU)

    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(both.model["b"].weight, second.model["b"].weight)
    assert not torch.equal(both.model["a"].weight, both.model["b"].weight)
    bound = 1 / 4**0.5
    assert both.model["a"].weight.abs().max() <= bound


def test_attention_and_normalisation_start_as_torch_starts_them() -> None:
    def build(_: object) -> Parts:
        return Parts(nn.ModuleDict({"att": nn.MultiheadAttention(8, 2), "norm": nn.BatchNorm1d(8)}))

    parts = construct(build, None)
    start(parts, 5, 0, CPU)

    assert torch.equal(parts.model["att"].out_proj.bias, torch.zeros(8))
    assert torch.equal(parts.model["norm"].weight, torch.ones(8))
    assert torch.equal(parts.model["norm"].running_var, torch.ones(8))
    assert parts.model["norm"].num_batches_tracked == 0


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


def test_a_parameter_without_first_values_is_named_and_can_be_given_some() -> None:
    def initialise(module: nn.Module) -> None:
        if isinstance(module, Scale):
            module.scale.fill_(2)

    with pytest.raises(UserMistake, match=r"model\.0\.scale \(float32\[3\] of Scale\) got no first values"):
        start(construct(lambda _: Parts(nn.Sequential(Scale())), None), 1, 0, CPU)
    parts = construct(lambda _: Parts(nn.Sequential(Scale()), initialise=initialise), None)
    start(parts, 1, 0, CPU)
    assert torch.equal(parts.model[0].scale, torch.full((3,), 2.0))


class Table(nn.Module):
    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4.0, device=device), persistent=False)


def test_buffers_outside_the_state_are_computed_again_or_named() -> None:
    def compute(module: nn.Module) -> None:
        module.table = torch.arange(4.0) * 2

    with pytest.raises(UserMistake, match=r"model: the buffer 0\.table of Table has no values"):
        start(construct(lambda _: Parts(nn.Sequential(Table())), None), 1, 0, CPU)
    made = construct(lambda _: Parts(nn.Sequential(Table("cpu"))), None)
    start(made, 1, 0, CPU)
    hooked = construct(lambda _: Parts(nn.Sequential(Table()), buffers=compute), None)
    refill(hooked, capture(made.objects(), 0))

    assert capture(made.objects(), 0).local == {}
    assert torch.equal(made.model[0].table, torch.arange(4.0))
    assert torch.equal(hooked.model[0].table, torch.arange(4.0) * 2)


def test_mistakes_in_build_are_said_with_their_names() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask = torch.ones(2)

    model = nn.Linear(2, 2)
    with pytest.raises(UserMistake, match="keeps the tensor 'mask'"):
        construct(lambda _: Parts(nn.Sequential(Hidden())), None)
    with pytest.raises(UserMistake, match="needs the values of a tensor"):
        construct(lambda _: Parts(model, torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))), None)
    old = known([capture({"model": model}, 0).described])
    with pytest.raises(UserMistake, match=r"model\.bias as float32\[3\]; .* it is float32\[2\]"):
        wanted(construct(lambda _: Parts(nn.Linear(2, 3)), None), 0, old)
    with pytest.raises(UserMistake, match=r"a model with model\.0\.bias, which"):
        wanted(construct(lambda _: Parts(nn.Sequential(nn.Linear(2, 2))), None), 0, old)
    assert sorted(unwanted(old, [])) == ["model.bias", "model.weight"]


def test_a_box_that_did_not_come_is_named() -> None:
    model = nn.Linear(2, 2)
    old = known([capture({"model": model}, 0).described])
    parts = construct(lambda _: Parts(nn.Linear(2, 2)), None)

    with pytest.raises(SlurmElasticError, match=r"rank 0 did not get model\.bias"):
        fill(parts, wanted(parts, 0, old), old, {}, CPU)


def test_random_generators_belong_to_their_rank() -> None:
    torch.manual_seed(11)
    model = nn.Linear(2, 2)
    taken = capture({"model": model}, 1, peers=[0, 1], with_rng=True)
    expected = torch.rand(3)
    old = known([taken.described])
    parts = construct(lambda _: Parts(nn.Linear(2, 2)), None)
    fill(parts, wanted(parts, 1, old), old, {key: view.clone() for key, view in taken.local.items()}, CPU)

    assert torch.equal(torch.rand(3), expected)
    assert "rng.cpu.1" not in layout([taken.described], 2).holds[0]
    assert "rng.cpu.1" not in wanted(parts, 0, old).tensors


def test_a_mesh_made_inside_build_and_an_evaluation_do_not_disturb_capture() -> None:
    """On rank 1 of 3; a fake group answers collectives with what happens to be there."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    try:

        def build(_: object) -> Parts:
            model = nn.Linear(2, 7)
            fully_shard(model, mesh=init_device_mesh("cpu", (3,)))
            return Parts(model)

        parts = construct(build, None)
        start(parts, 1, 1, CPU)
        alone = construct(lambda _: Parts(nn.Linear(2, 7)), None)
        start(alone, 1, 0, CPU)
        with torch.no_grad():
            parts.model(torch.ones(1, 2))
        taken = capture(parts.objects(), 1)

        assert set(taken.local) == {("model.weight", Box((3, 0), (3, 2))), ("model.bias", Box((3,), (3,)))}
        assert torch.equal(taken.local["model.weight", Box((3, 0), (3, 2))], alone.model.weight[3:6])
    finally:
        dist.destroy_process_group()
