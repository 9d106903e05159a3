"""Hundreds of malformed files: each gives ConfigError with a printable message, never another exception."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_elastic.config import loads
from slurm_elastic.config_decode import SECTIONS
from slurm_elastic.config_keys import fields
from slurm_elastic.config_sbatch import refused_options
from slurm_elastic.errors import ConfigError

HEAD = "run: {name: x, dir: /tmp/x, command: [python]}\n"
WRONG = ["[[1]]", "{a: {b: c}}", "~", "'\\0'", "-1", ".nan", "2001-01-01"]
LENIENT = {  # values of WRONG that are fine for a key
    "run.workdir": {"2001-01-01", "-1", ".nan", "'\\0'"},
    "run.name": {"2001-01-01"},
    "run.dir": {"2001-01-01", "-1", ".nan", "'\\0'"},
    "checkpoint.dir": {"2001-01-01", "-1", ".nan", "'\\0'"},
    "run.mpi": {"2001-01-01"},
    "run.env": {"~"},
    "base.sbatch": {"~"},
    "base.time": {"~"},
    "elastic.time": {"~"},
} | {f"{s}.{k}": {"2001-01-01"} for s, k in product(("base", "elastic"), ("qos", "partition", "account"))}
LENIENT["control.interface"] = {"2001-01-01"}


def with_value(key: str, value: str) -> str:
    section, name = key.split(".")
    if section == "run":
        keys = {"name": "x", "dir": "/tmp/x", "command": "[python]"} | {name: value}
        return "run: {" + ", ".join(f"{k}: {v}" for k, v in keys.items()) + "}\n"
    return HEAD + f"{section}: {{{name}: {value}}}\n"


CASES = [(key, value) for key in fields() for value in WRONG if value not in LENIENT.get(key, ())]
CASES += [(f"{section}.{name}", "1") for section in SECTIONS for name in ("nods", "", "Name", "x" * 90, "'\\x1b[31m'")]
CASES += [("base.sbatch", f"{{{option}: x}}") for option in refused_options()]


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        loads(text, "run.yaml")
    message = str(refused.value)
    assert message.encode("utf-8") and message.replace("\n", "").isprintable()
    return message


def test_there_are_at_least_two_hundred():
    assert len(CASES) >= 200


@pytest.mark.parametrize("key", sorted({key for key, _ in CASES}))
def test_a_wrong_value_is_refused_and_the_key_is_named(key):
    for value in [value for k, value in CASES if k == key]:
        message = refusal(with_value(key, value))
        section = key.split(".")[0]
        assert f"{section}." in message or "not YAML" in message, (value, message)


PIECES = [
    *"{}[]:,-?!&*#|>%@'\"\\\t \n\0\x07\ufeff\u2028é",
    "<<: ",
    "- ",
    "9" * 400,
    "!!binary ",
    "\ud800",
    "---\n",
]
GOOD = (
    HEAD
    + """\
base:
  nodes: 2
  time: 1-00:00:00
  sbatch: {mem: 4G}
elastic:
  min_nodes: 2
  max_nodes: 8
  replica_increment_step: 2
  companion_nodes: 2
batch: {global_batch_size: 64, tolerance: 10%}
checkpoint:
  every: 10m
"""
)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_mutations_of_a_good_file_load_or_are_refused_and_nothing_else(chance: random.Random):
    text = GOOD
    for _ in range(chance.randint(1, 6)):
        at, length = chance.randrange(len(text) + 1), chance.choice([0, 0, 1, 5, 30])
        text = text[:at] + chance.choice([*PIECES, text[at : at + 40]]) + text[at + length :]
    try:
        loads(text, "run.yaml")
    except ConfigError as refused:
        assert str(refused).encode("utf-8")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
def test_random_text_is_refused(text):
    try:
        loads(text, "run.yaml")
    except ConfigError as refused:
        assert str(refused).encode("utf-8")
    else:
        raise AssertionError("accepted")
