from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.units import format_duration, format_size, parse_duration, parse_size, slurm_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("1.5", 1.5),
        ("30s", 30),
        ("500ms", 0.5),
        ("5m", 300),
        ("5 min", 300),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h 30m 5s", 5405),
        ("2 days", 172800),
        ("1w", 604800),
        ("10:00", 600),
        ("2:00:00", 7200),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:00:00", 129600),
        (" 7S ", 7),
    ],
)
def test_durations_read_as_people_and_slurm_write_them(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "-5",
        "-5s",
        "5 parsecs",
        "1m1h",
        "5m5m",
        "1:2:3:4",
        "1:60",
        "1-24:00",
        "1::2",
        ":5",
        "nan",
        "inf",
        "unlimited",
        "1e400",
        "9" * 5000,
        "9" * 30 + "s",
        "99999999d",
        "5s;rm",
        "٣s",
        "1-",
        "5m\0",
        "m",
    ],
)
def test_anything_else_is_refused_as_a_value_error(text):
    with pytest.raises(ValueError, match=r"expected|longer"):
        parse_duration(text)


def test_a_negative_duration_is_said_to_be_negative():
    with pytest.raises(ValueError, match="negative"):
        parse_duration("-5m")


@given(st.text(max_size=30))
def test_no_text_makes_the_parsers_fail_otherwise(text):
    for parse in (parse_duration, parse_size):
        with contextlib.suppress(ValueError):
            assert parse(text) >= 0


@given(st.integers(0, 300_000_000))
def test_slurms_form_reads_back(seconds):
    assert parse_duration(slurm_time(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.35, "0.35s"), (9, "9s"), (59.6, "1m"), (90, "1m30s"), (3600, "1h"), (3605, "1h"), (129600, "1d12h")],
)
def test_durations_are_shown_short(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("4K", 4096), ("512M", 2**29), ("1.5GiB", 3 * 2**29), ("2 gb", 2**31), ("7B", 7)]
)
def test_sizes_are_powers_of_1024(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1", "1X", "1e9", "9" * 99])
def test_a_size_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        parse_size(text)


def test_sizes_are_shown_short():
    assert [format_size(n) for n in (512, 1536, 4 * 2**30)] == ["512 B", "1.5 KiB", "4.0 GiB"]
