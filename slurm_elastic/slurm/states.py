"""Job states and node states under one name each, and what a job state means to an elastic run.

A state that is not in these tables is shown as Slurm printed it and means UNKNOWN: nothing is decided from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum


class Meaning(Enum):
    """What a job in this state is to a run."""

    WAITING = "waiting"  # has no nodes now, may get some: do not submit another for it
    HOLDS = "holds"  # has its nodes (CONFIGURING: they may not be up yet)
    PAUSED = "paused"  # has its nodes, but nothing computes: lost to the training until it reports again
    LEAVING = "leaving"  # is giving its nodes back; may be followed by WAITING when it is requeued
    OVER = "over"  # will not run again
    UNKNOWN = "unknown"


# Long name -> (code of squeue, meaning).
_JOB_STATES: Mapping[str, tuple[str, Meaning]] = {
    "PENDING": ("PD", Meaning.WAITING),
    "REQUEUED": ("RQ", Meaning.WAITING),
    "REQUEUE_FED": ("RF", Meaning.WAITING),
    "REQUEUE_HOLD": ("RH", Meaning.WAITING),
    "SPECIAL_EXIT": ("SE", Meaning.WAITING),
    "RESV_DEL_HOLD": ("RD", Meaning.WAITING),
    "EXPEDITING": ("EX", Meaning.WAITING),
    "CONFIGURING": ("CF", Meaning.HOLDS),
    "POWER_UP_NODE": ("PU", Meaning.HOLDS),
    "RUNNING": ("R", Meaning.HOLDS),
    "SUSPENDED": ("S", Meaning.PAUSED),
    "STOPPED": ("ST", Meaning.PAUSED),
    "COMPLETING": ("CG", Meaning.LEAVING),
    "STAGE_OUT": ("SO", Meaning.LEAVING),
    "COMPLETED": ("CD", Meaning.OVER),
    "CANCELLED": ("CA", Meaning.OVER),
    "FAILED": ("F", Meaning.OVER),
    "TIMEOUT": ("TO", Meaning.OVER),
    "NODE_FAIL": ("NF", Meaning.OVER),
    "PREEMPTED": ("PR", Meaning.OVER),
    "BOOT_FAIL": ("BF", Meaning.OVER),
    "DEADLINE": ("DL", Meaning.OVER),
    "OUT_OF_MEMORY": ("OOM", Meaning.OVER),
    "LAUNCH_FAILED": ("LF", Meaning.OVER),
    "RECONFIG_FAIL": ("RX", Meaning.OVER),
    "REVOKED": ("RV", Meaning.OVER),  # a federation runs it elsewhere
}
# A job is still running while a signal is being delivered to it, or while it is being resized.
_SAME_AS = {"SIGNALING": "RUNNING", "SI": "RUNNING", "RESIZING": "RUNNING", "RS": "RUNNING", "RUNING": "RUNNING"}
_LONG_NAMES = {code: name for name, (code, _) in _JOB_STATES.items()}
# These are followed by PENDING when the job may be requeued: seen in that instant, they are not the end.
_OVER_UNLESS_REQUEUED = frozenset({"PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"})


def job_state(printed: str) -> str:
    """Canonical long name of "CG", "cancelled by 4001", "CANCELLED+", "SIGNALING" (RUNNING), ...; else as printed."""
    word = printed.strip().split(" ")[0].rstrip("+").upper()
    word = _SAME_AS.get(word, word)
    word = _LONG_NAMES.get(word, word)
    return word if word in _JOB_STATES else printed.strip()


def state_code(state: str) -> str:
    """squeue's short code of a canonical state ("CG"); an unknown state itself."""
    return _JOB_STATES[state][0] if state in _JOB_STATES else state


def meaning(state: str, *, requeue: bool = False) -> Meaning:
    """What a canonical state means. `requeue`: the job may be requeued, so PREEMPTED and NODE_FAIL are not the end."""
    if state not in _JOB_STATES:
        return Meaning.UNKNOWN
    if requeue and state in _OVER_UNLESS_REQUEUED:
        return Meaning.LEAVING
    return _JOB_STATES[state][1]


# ---- nodes -----------------------------------------------------------------------------------------------------

# sinfo's words that are a base state and a flag in one.
_NODE_WORDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ALLOC": ("ALLOCATED", ()),
    "MIX": ("MIXED", ()),
    "UNK": ("UNKNOWN", ()),
    "FUTR": ("FUTURE", ()),
    "INVAL": ("INVAL", ()),
    "DRAIN": ("IDLE", ("DRAIN",)),
    "DRAINED": ("IDLE", ("DRAIN",)),
    "DRNG": ("ALLOCATED", ("DRAIN",)),
    "DRAINING": ("ALLOCATED", ("DRAIN",)),
    "FAIL": ("IDLE", ("FAIL",)),
    "FAILG": ("ALLOCATED", ("FAIL",)),
    "FAILING": ("ALLOCATED", ("FAIL",)),
    "MAINT": ("IDLE", ("MAINTENANCE",)),
    "RESV": ("IDLE", ("RESERVED",)),
    "RESERVED": ("IDLE", ("RESERVED",)),
    "COMP": ("IDLE", ("COMPLETING",)),
    "COMPLETING": ("IDLE", ("COMPLETING",)),
    "PLND": ("IDLE", ("PLANNED",)),
    "PLANNED": ("IDLE", ("PLANNED",)),
    "BOOT": ("DOWN", ("REBOOT_ISSUED",)),
    "REBOOT": ("DOWN", ("REBOOT_ISSUED",)),
}
_NODE_MARKS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
_NODE_WORD = re.compile(r"([A-Z_]+)([*~#!%$@^-]*)", re.ASCII)


def node_state(printed: str) -> tuple[str, frozenset[str]]:
    """Base state and flags of "ALLOCATED+DRAIN+REBOOT_REQUESTED", "DOWN*+DRAIN", "draining@", "idle~", ...

    Something that does not look like a node state comes back as it is, without flags.
    """
    words = printed.strip().upper().split("+")
    flags: set[str] = set()
    base = ""
    for word in words:
        matched = _NODE_WORD.fullmatch(word)
        if matched is None:
            return printed.strip(), frozenset()
        name, marks = matched.groups()
        flags.update(_NODE_MARKS[mark] for mark in marks)
        if base:
            flags.add("MAINTENANCE" if name == "MAINT" else name)
            continue
        base, implied = _NODE_WORDS.get(name, (name, ()))
        flags.update(implied)
    return base, frozenset(flags)
