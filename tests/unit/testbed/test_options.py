"""What a testbed may look like, and where it may lie."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.errors import TestbedError, UserMistake
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.place import (
    SLOTS,
    Place,
    checked_directory,
    default_directory,
    exclusive,
    port_is_free,
    read_marker,
    write_marker,
)


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"nodes": 0}, "--nodes"),
        ({"nodes": 101}, "--nodes"),
        ({"cpus": 0}, "--cpus"),
        ({"gpus": -1}, "--gpus"),
        ({"grace_s": -1}, "--grace"),
        ({"kill_wait_s": 0}, "--kill-wait"),
        ({"slurmd_timeout_s": 4}, "--slurmd-timeout"),
        ({"preempt_mode": "SUSPEND"}, "--preempt-mode"),
        ({"notice": "letter"}, "--notice"),
        ({"users": ("root\nx",)}, "--users"),
        ({"rootless": True}, "--rootless"),
    ],
)
def test_an_option_that_cannot_work_is_named(values: dict[str, Any], flag: str) -> None:
    with pytest.raises(UserMistake, match=flag):
        Options(**values)


def test_a_site_without_notice_has_no_grace_time() -> None:
    assert Options(grace_s=20, notice="none").real_grace_s == 0
    assert Options(grace_s=20, notice="sigterm").real_grace_s == 20


def test_a_node_that_is_not_there_is_named() -> None:
    assert Options(nodes=3).node_index("n3") == 3
    for node in ("n4", "n0", "n01", "", "n1,n2", "../n1"):
        with pytest.raises(UserMistake, match="n1 to n3"):
            Options(nodes=3).node_index(node)


def test_names_that_are_no_names_are_refused() -> None:
    for name in ("", "A", "../up", "a b", "-x", "x" * 32):
        with pytest.raises(UserMistake, match="--name"):
            default_directory(name)


def test_a_directory_with_other_things_in_it_is_never_taken(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").touch()
    with pytest.raises(UserMistake, match="no testbed"):
        checked_directory(tmp_path)


def test_a_directory_behind_a_link_or_of_another_kind_is_never_taken(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(tmp_path)
    file.touch()
    for path in (link, file):
        with pytest.raises(UserMistake, match="not a directory of yours"):
            checked_directory(path)


def test_a_directory_that_slurm_cannot_name_is_refused() -> None:
    for path in ("/tmp/with space", "/tmp/with#mark", "/tmp/" + "x" * 90):
        with pytest.raises(UserMistake, match="--dir"):
            checked_directory(Path(path))


def test_a_testbed_is_found_again_by_its_directory(tmp_path: Path) -> None:
    place, options = Place("here", tmp_path, 7, False), Options(nodes=3, users=("anna", "ben"), notice="none")
    assert read_marker(tmp_path) is None
    write_marker(place, options)
    assert read_marker(tmp_path) == (place, options)


def test_a_damaged_record_is_an_error_and_not_an_empty_testbed(tmp_path: Path) -> None:
    for text in ("", "{}", '{"format": "another"}', "[1]"):
        (tmp_path / "testbed.json").write_text(text)
        with pytest.raises(TestbedError, match="cannot be read"):
            read_marker(tmp_path)


def test_no_two_slots_share_a_network_a_link_or_a_port() -> None:
    places = [Place("x", Path("/x"), slot, False) for slot in range(SLOTS)]
    ports = [port for place in places for port in (place.port, place.node_port(1), place.database_port)]
    assert len(set(ports)) == len(ports)
    assert len({place.network for place in places}) == SLOTS
    names = [name for place in places for name in (place.bridge, place.link(100))]
    assert len(set(names)) == len(names)
    assert max(len(name) for name in names) <= 15  # what the kernel takes


def test_a_port_in_use_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not port_is_free(port)
    assert port_is_free(port)


def test_only_one_at_a_time_holds_a_lock_and_the_next_one_gets_it() -> None:
    what = f"test {os.getpid()}"
    got = threading.Event()

    def second() -> None:
        with exclusive(what, 10):
            got.set()

    waiting = threading.Thread(target=second)
    with exclusive(what, 10):
        waiting.start()
        assert not got.wait(0.2)
        with pytest.raises(TestbedError, match="holding"), exclusive(what, 0.05):
            pass
    waiting.join(10)
    assert got.is_set()
