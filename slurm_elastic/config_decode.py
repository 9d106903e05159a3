"""The tree of run.yaml to typed sections, collecting every fault on the way.

A value that is wrong is replaced by its default so that the rest can still be checked; the caller raises if there
was any fault, so such a configuration never gets out.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import msgspec

from slurm_elastic import config_model as model
from slurm_elastic.config_yaml import Fault, Listing, Mapping, Scalar, Tree, shown, shown_key
from slurm_elastic.units import parse_duration

SECTIONS: dict[str, type[model.Section]] = {
    "run": model.Run,
    "base": model.Base,
    "elastic": model.Elastic,
    "batch": model.Batch,
    "checkpoint": model.Checkpoint,
    "control": model.Control,
}
_STAND_IN: dict[str, Any] = {"name": "x", "dir": "/x", "command": ("x",)}  # for a missing required value
_INTEGER = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9]){0,14})", re.ASCII)
_DECIMAL = re.compile(r"[+-]?[0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE][+-]?[0-9]{1,2})?(%)?", re.ASCII)


@dataclass(slots=True)
class Decoded:
    """`config` holds defaults where `faults` name a key. `lines`: dotted key -> line of every key that was given."""

    config: model.RunConfig
    lines: dict[str, int]
    faults: list[Fault]

    def line_of(self, key: str) -> int | None:
        """The line of a key, or of the nearest enclosing one that was written."""
        while key:
            if key in self.lines:
                return self.lines[key]
            key = key.rpartition(".")[0]
        return None


class _Bad(Exception):
    """A value does not fit; the text is the reason."""


@dataclass(slots=True)
class _Walk:
    faults: list[Fault]
    lines: dict[str, int] = field(default_factory=dict)


def decode(tree: Mapping, faults: list[Fault]) -> Decoded:
    """Sections of `tree`; adds to `faults`."""
    walk = _Walk(faults)
    for name, (line, _) in tree.entries.items():
        if name not in SECTIONS:
            owner = next((s for s, c in SECTIONS.items() if name in _fields(c)), "")
            hint = f"; it belongs below `{owner}:`" if owner else did_you_mean(name, SECTIONS)
            faults.append((line, shown_key(name), f"is not a setting{hint}"))
    values: dict[str, Any] = {name: _section(name, cls, tree, walk) for name, cls in SECTIONS.items()}
    return Decoded(_with_sizes(model.RunConfig(**values), walk.lines), walk.lines, faults)


def _with_sizes(config: model.RunConfig, lines: dict[str, int]) -> model.RunConfig:
    """Sizes that the file leaves out follow from the others: at least the base, at most no more than that."""
    elastic = config.elastic
    low = elastic.min_nodes
    if "elastic.min_nodes" not in lines and config.run.layout == "companions":
        low = max(1, config.base.nodes)
    high = elastic.max_nodes if "elastic.max_nodes" in lines else low
    return msgspec.structs.replace(config, elastic=msgspec.structs.replace(elastic, min_nodes=low, max_nodes=high))


def did_you_mean(name: str, known: Any) -> str:
    """ "; did you mean 'x'?" for the nearest known name, or nothing."""
    near = difflib.get_close_matches(name[:64], list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _fields(cls: type[model.Section]) -> dict[str, msgspec.structs.FieldInfo]:
    return {each.encode_name: each for each in msgspec.structs.fields(cls)}


def _section(name: str, cls: type[model.Section], tree: Mapping, walk: _Walk) -> model.Section:
    line, node = tree.entries.get(name, (1, Mapping({}, 1)))
    known = _fields(cls)
    if name in tree.entries:
        walk.lines[name] = line
        if isinstance(node, Scalar) and node.kind == "null":
            node = Mapping({}, line)
    if not isinstance(node, Mapping):
        walk.faults.append((line, name, "is not a mapping; put indented keys such as " + ", ".join(list(known)[:3])))
        node = Mapping({}, line)
    for key, (key_line, _) in node.entries.items():
        if key not in known:
            hint = _elsewhere(key, name) or did_you_mean(key, known)
            walk.faults.append((key_line, f"{name}.{shown_key(key)}", f"is not a setting{hint}"))
    values: dict[str, Any] = {}
    for key, info in known.items():
        if key in node.entries:
            key_line, value = node.entries[key]
            walk.lines[f"{name}.{key}"] = key_line
            try:
                values[info.name] = _value(value, info.type, f"{name}.{key}", walk)
            except _Bad as bad:
                walk.faults.append((value.line, f"{name}.{key}", str(bad)))
        elif info.required:
            walk.faults.append((walk.lines.get(name, 1), f"{name}.{key}", "is required"))
        if info.required:
            values.setdefault(info.name, _STAND_IN[info.name])
    return cls(**values)


def _elsewhere(key: str, here: str) -> str:
    owner = next((s for s, c in SECTIONS.items() if s != here and key in _fields(c)), "")
    return f"; it belongs below `{owner}:`" if owner else ""


def _value(node: Tree, want: Any, key: str, walk: _Walk) -> Any:
    origin, args = get_origin(want), get_args(want)
    if origin is dict:
        return _dictionary(node, args[1], key, walk)
    if origin is tuple:
        return _listing(node, args[0], key, walk)
    if not isinstance(node, Scalar):
        raise _Bad(f"is a {'list' if isinstance(node, Listing) else 'mapping'}; expected one value")
    if node.kind == "null" and not node.quoted:
        if NoneType in args:
            return None
        raise _Bad("has no value; give one or remove the key")
    if origin is Literal:
        if node.text not in args:
            raise _Bad(f"is {shown(node.text)}; expected {', '.join(args)}{did_you_mean(node.text, args)}")
        return node.text
    if want is bool:
        return _boolean(node)
    if want is int:
        return _integer(node)
    if want is str:
        return _text(node)
    return _decimal(node) if key == "batch.tolerance" else _duration(node)


def _dictionary(node: Tree, want: Any, key: str, walk: _Walk) -> dict[str, Any]:
    if isinstance(node, Scalar) and node.kind == "null":
        return {}
    if not isinstance(node, Mapping):
        raise _Bad("is not a mapping; expected indented `name: value` lines")
    found: dict[str, Any] = {}
    for name, (line, value) in node.entries.items():
        dotted = f"{key}.{shown_key(name)}"
        walk.lines[dotted] = line
        try:
            if not isinstance(value, Scalar) or (value.kind == "null" and not value.quoted):
                raise _Bad("needs one value; write '' for an empty one")
            flag = want is not str and value.kind == "bool" and not value.quoted
            found[name] = _boolean(value) if flag else _text(value)
        except _Bad as bad:
            walk.faults.append((value.line, dotted, str(bad)))
    return found


def _listing(node: Tree, want: Any, key: str, walk: _Walk) -> tuple[Any, ...]:
    if isinstance(node, Scalar) and want is str and node.kind != "null":
        raise _Bad(f"is text; write a list of words: [{', '.join(node.text.split()[:6])[:80]}]")
    if not isinstance(node, Listing):
        raise _Bad("is not a list; expected [a, b, ...]")
    found = []
    for position, item in enumerate(node.items):
        try:
            found.append(_value(item, want, f"{key}[{position}]", walk))
        except _Bad as bad:
            walk.faults.append((item.line, f"{key}[{position}]", str(bad)))
    return tuple(found)


def _boolean(node: Scalar) -> bool:
    if node.kind != "bool" or node.quoted:
        raise _Bad(f"is {shown(node.text)}; expected true or false")
    return node.text.lower() in ("true", "yes", "on")


def _integer(node: Scalar) -> int:
    if node.quoted or not _INTEGER.fullmatch(node.text):
        hint = " without quotes" if node.quoted and _INTEGER.fullmatch(node.text) else ""
        raise _Bad(f"is {shown(node.text)}; expected a whole number{hint}")
    return int(node.text)


def _decimal(node: Scalar) -> float:
    matched = None if node.quoted else _DECIMAL.fullmatch(node.text)
    if not matched:
        raise _Bad(f"is {shown(node.text)}; expected a number such as 0.1, or 10%")
    return float(node.text.rstrip("%")) / (100 if matched[1] else 1)


def _duration(node: Scalar) -> float:
    try:
        seconds = parse_duration(node.text.replace("_", "") if node.kind == "int" else node.text)
    except ValueError as bad:
        raise _Bad(f"is {shown(node.text)}; {bad}") from bad
    assert math.isfinite(seconds)
    return seconds


def _text(node: Scalar) -> str:
    """Numbers and words count as the text that was written: `OMP_NUM_THREADS: 4` needs no quotes."""
    if "\0" in node.text:
        raise _Bad("contains a NUL character")
    try:
        node.text.encode("utf-8")
    except UnicodeEncodeError as broken:
        raise _Bad(f"is {shown(node.text)}; it holds half of a surrogate pair") from broken
    return node.text
