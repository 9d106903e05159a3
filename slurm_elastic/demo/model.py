"""A small GPT over bytes in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

BYTES = 256

# Shape letters: B = sequences, T = positions, D = width, H = heads, V = byte values.


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the model. `hash_rows`: rows of the tables that embed the last two and three bytes (hashed)."""

    context: int = 128
    width: int = 96
    layers: int = 2
    heads: int = 4
    hash_rows: int = 8192


class Block(nn.Module):
    """Attention and a feed-forward net, each behind a norm and added to the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_attention = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.norm_mlp = nn.LayerNorm(shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        q, k, v = (
            part.view(B, T, self.heads, D // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm_attention(x_BTD)).split(D, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(mixed.transpose(1, 2).reshape(B, T, D))
        out_BTD: Tensor = x_BTD + self.mlp(self.norm_mlp(x_BTD))
        return out_BTD


class Gpt(nn.Module):
    """Byte-level language model; the last bytes also enter as hashed pairs and triples, which saves layers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.byte = nn.Embedding(BYTES, shape.width)
        self.pair = nn.Embedding(shape.hash_rows, shape.width)
        self.triple = nn.Embedding(shape.hash_rows, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, BYTES, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, text_BT: Tensor) -> Tensor:
        before_BT = functional.pad(text_BT, (1, 0))[:, :-1]
        earlier_BT = functional.pad(text_BT, (2, 0))[:, :-2]
        pair_BT = text_BT * 256 + before_BT
        triple_BT = pair_BT * 256 + earlier_BT
        x_BTD = (
            self.byte(text_BT)
            + self.pair((pair_BT * 40503 >> 4) % self.shape.hash_rows)
            + self.triple((triple_BT * 40503 >> 7) % self.shape.hash_rows)
            + self.position(torch.arange(text_BT.shape[1]))
        )
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV: Tensor = self.head(self.norm(x_BTD))
        return logits_BTV


def loss_of(model: nn.Module, text_BT: Tensor) -> Tensor:
    """Mean loss per byte of sequences of context + 1 bytes: each byte from those before it."""
    logits_BTV = model(text_BT[:, :-1])
    return functional.cross_entropy(logits_BTV.flatten(0, 1), text_BT[:, 1:].flatten())
