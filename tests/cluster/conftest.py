"""One testbed for all cluster tests of a session; after every test it must be as good as new (T13)."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from slurm_elastic.errors import TestbedError
from slurm_elastic.testbed import packages
from slurm_elastic.testbed.cluster import Cluster
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.place import default_directory

SESSION_OPTIONS = Options(nodes=6, cpus=4, grace_s=15, kill_wait_s=3, slurmd_timeout_s=15)
PREFIX = "pytest-"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and not any(item.iter_markers("timeout")):
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def testbed_ground() -> Iterator[str]:
    """What every testbed of this session starts from: root, packages, nothing left by dead sessions.

    Gives a prefix for names that no other session uses.
    """
    if os.geteuid() != 0:
        pytest.skip("a testbed with nodes of their own needs root")
    missing = packages.missing_packages()
    if missing:
        pytest.skip(f"needs packages: {' '.join(packages.install_command(missing))}")
    take_down_orphans()
    # a session that is told to end (a time limit around it) must still take its testbed down
    before = signal.signal(signal.SIGTERM, _interrupt)
    yield f"{PREFIX}{os.getpid()}"
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def session_cluster(testbed_ground: str) -> Iterator[Cluster]:
    here = Cluster(testbed_ground, SESSION_OPTIONS)
    try:
        here.up()
        yield here
    finally:
        here.down()


@pytest.fixture
def cluster(session_cluster: Cluster) -> Iterator[Cluster]:
    """The session's testbed: 6 idle nodes of 4 CPUs. Jobs a test left are ended, and what it broke is mended."""
    here = session_cluster
    yield here
    _reset(here)


def _reset(here: Cluster) -> None:
    options = {"mode": SESSION_OPTIONS.preempt_mode, "grace_s": SESSION_OPTIONS.grace_s}
    here.hurry_controller()
    here.start_controller()
    if here.options != SESSION_OPTIONS:
        here.set_preemption(notice=SESSION_OPTIONS.notice, **options)
    here.restore()
    assert here.queue() == ()
    assert here.health().whole
    _assert_nothing_runs(here)


def _assert_nothing_runs(here: Cluster) -> None:
    """Step daemons outlive their job for a moment. What stays is an error of the test or of what it tests."""
    try:
        here.wait_until(lambda: not here.leftovers(), 15, "nodes without processes of jobs")
    except TestbedError:
        left = here.leftovers()
        for node in here.options.node_names:
            here.revive_node(node)  # (the next test must not suffer)
        pytest.fail(f"processes left in nodes: {left}")


def take_down_orphans() -> None:
    """Testbeds of sessions that were killed before they could clean up."""
    for path in Path(tempfile.gettempdir()).glob(f"slurm-elastic-testbed-{PREFIX}*"):
        found = re.fullmatch(rf"slurm-elastic-testbed-({PREFIX}(\d+)(?:-[a-z0-9]+)?)", path.name)
        if found and not Path(f"/proc/{found[2]}").exists():
            name = found[1]
            assert default_directory(name) == path
            Cluster(name).down()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt("told to end")
