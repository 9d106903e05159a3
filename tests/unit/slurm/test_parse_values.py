import time

import pytest

from slurm_elastic.slurm import parse_values as values


@pytest.mark.parametrize("nothing", ["(null)", "N/A", "None", "Unknown", "", "UNLIMITED", "Partition_Limit", "NOT_SET"])
def test_slurms_words_for_nothing_are_nothing(nothing):
    assert values.text(nothing) == ""
    assert values.moment(nothing) is None
    assert values.duration(nothing) is None
    assert values.number(nothing) == 0


def test_moments_are_unix_seconds_or_local_time():
    assert values.moment("1796078848") == 1796078848.0
    assert values.moment("0") is None
    assert values.moment("2026-11-29T13:31:43") == time.mktime(
        time.strptime("2026-11-29 13:31:43", "%Y-%m-%d %H:%M:%S")
    )


@pytest.mark.parametrize("garbled", ["tomorrow", "2026-13-01T00:00:00", "1.5"])
def test_a_garbled_moment_is_refused(garbled):
    with pytest.raises(ValueError):
        values.moment(garbled)


@pytest.mark.parametrize(
    ("printed", "seconds"), [("5:00", 300), ("02:00:00", 7200), ("1-00:00:00", 86400), ("0:30", 30)]
)
def test_durations_are_seconds(printed, seconds):
    assert values.duration(printed) == seconds


def test_a_range_of_nodes_counts_with_its_first_number():
    assert values.number("3-3") == 3


@pytest.mark.parametrize(
    ("printed", "code"), [("32512", "127:0"), ("9", "0:9"), ("0", "0:0"), ("1:0", "1:0"), ("N/A", "")]
)
def test_exit_codes_come_as_code_and_signal(printed, code):
    assert values.exit_code(printed) == code


@pytest.mark.parametrize(
    ("printed", "numbers"),
    [("slurm-wlm 22.05.8", (22, 5, 8)), ("slurm 24.11.5-1", (24, 11, 5)), ("slurm 26.05.0-0rc1", (26, 5, 0))],
)
def test_versions_of_every_packaging(printed, numbers):
    assert values.version(printed) == numbers


def test_something_else_has_no_version():
    with pytest.raises(ValueError, match="no Slurm version"):
        values.version("command not found")


def test_counts_per_node_are_written_out():
    assert values.counts("4(x2),8") == (4, 4, 8)
    with pytest.raises(ValueError, match="counts"):
        values.counts("4(y2)")
