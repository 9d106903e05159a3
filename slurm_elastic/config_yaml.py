"""YAML text to a tree of plain values that remembers the line of every key. Takes nothing that could surprise.

Refused with a reason: aliases and anchors (they can grow a small file without bound), tags, merge keys, several
documents, duplicate keys, nesting beyond what run.yaml has, files that are too large or not UTF-8.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import yaml

LARGEST_FILE = 64 * 1024
DEEPEST = 8

LONGEST_SHOWN = 40

Fault = tuple[int | None, str, str]  # line from 1, dotted key, reason


@dataclass(frozen=True, slots=True)
class Scalar:
    text: str  # as written, without quotes
    kind: str  # "str", "int", "float", "bool", "null" or "timestamp": what YAML takes it for
    line: int
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    items: tuple[Tree, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Mapping:
    entries: dict[str, tuple[int, Tree]]  # key -> (line of the key, value)
    line: int


Tree = Scalar | Listing | Mapping


class Unreadable(Exception):
    """The text is not one plain YAML document. `fault` says where and why."""

    def __init__(self, line: int | None, reason: str) -> None:
        super().__init__(reason)
        self.fault: Fault = (line, "the file", reason)


def shown(value: str) -> str:
    """Untrusted text for a message: quoted, printable and short."""
    return ascii(value if len(value) <= LONGEST_SHOWN else value[:LONGEST_SHOWN] + "…")


def shown_key(name: str) -> str:
    """A key for a message: as written when it is a word, else quoted."""
    return name if name.isascii() and name.isprintable() and 0 < len(name) <= LONGEST_SHOWN else shown(name)


def read_text(path: Path) -> str:
    """The file as text. Raises Unreadable when it is missing, special, too large or not UTF-8."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO must not make us wait
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unreadable(None, "is not a regular file")
            raw = file.read(LARGEST_FILE + 1)
    except FileNotFoundError as missing:
        raise Unreadable(None, "is not there") from missing
    except OSError as broken:
        raise Unreadable(None, f"cannot be read: {broken.strerror}") from broken
    except ValueError as broken:
        raise Unreadable(None, f"cannot be read: {broken}") from broken
    if len(raw) > LARGEST_FILE:
        raise Unreadable(None, f"is larger than {LARGEST_FILE // 1024} KiB: is this a run.yaml?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as broken:
        line = raw.count(b"\n", 0, broken.start) + 1
        raise Unreadable(
            line, f"is not UTF-8 text (byte 0x{raw[broken.start]:02x}); save the file as UTF-8"
        ) from broken


def parse(text: str, faults: list[Fault]) -> Mapping:
    """The document's top mapping; duplicate and odd keys are added to `faults`. Raises Unreadable."""
    try:
        _refuse_what_could_grow(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as broken:
        raise _unreadable(text, broken) from broken
    except yaml.reader.ReaderError as broken:
        line = text.count("\n", 0, broken.position) + 1
        raise Unreadable(line, f"has the control character {text[broken.position]!a}") from broken
    except (yaml.YAMLError, ValueError, OverflowError) as broken:
        raise Unreadable(None, f"is not YAML: {broken}") from broken
    if root is None:
        raise Unreadable(1, "is empty; `slurm-elastic init` writes an example")
    tree = _tree(root, "", faults)
    if not isinstance(tree, Mapping):
        raise Unreadable(tree.line, "is not a mapping; it starts with `run:` and indented keys below it")
    return tree


def _refuse_what_could_grow(text: str) -> None:
    """Looks at the stream of events, which costs no memory, before any tree is built."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else None
        if getattr(event, "anchor", None):  # an alias has one, too
            raise Unreadable(line, "uses YAML's anchors or aliases (& and *); write the value out, or put it in quotes")
        if getattr(event, "tag", None) is not None:
            raise Unreadable(line, "uses a YAML tag (!); tags are not supported, a text goes in quotes")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise Unreadable(line, f"is nested more than {DEEPEST} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _tree(node: yaml.Node, key: str, faults: list[Fault]) -> Tree:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode):
        return Scalar(node.value, node.tag.rpartition(":")[2], line, quoted=node.style is not None)
    if isinstance(node, yaml.SequenceNode):
        return Listing(tuple(_tree(item, f"{key}[{n}]", faults) for n, item in enumerate(node.value)), line)
    entries: dict[str, tuple[int, Tree]] = {}
    for key_node, value_node in node.value:
        key_line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            faults.append((key_line, key, "has a key that is not a plain word"))
            continue
        name = key_node.value
        dotted = f"{key}.{shown_key(name)}" if key else shown_key(name)
        if key_node.tag.endswith(":merge"):
            faults.append((key_line, dotted, "merge keys are not supported; write the values out"))
        elif name in entries:
            faults.append((key_line, dotted, f"is given twice (first on line {entries[name][0]})"))
        else:
            entries[name] = (key_line, _tree(value_node, dotted, faults))
    return Mapping(entries, line)


def _unreadable(text: str, broken: yaml.MarkedYAMLError) -> Unreadable:
    mark = broken.problem_mark or broken.context_mark
    line = mark.line + 1 if mark else None
    rows = text.splitlines()
    row = rows[line - 1] if line and line <= len(rows) else ""
    if "\t" in row[: len(row) - len(row.lstrip())] or (broken.problem or "").startswith("found character '\\t'"):
        return Unreadable(line, "is indented with a tab; use spaces")
    reason = " ".join(part for part in (broken.context, broken.problem) if part)
    return Unreadable(line, f"is not YAML: {reason}")
