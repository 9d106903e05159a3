"""Durations and sizes as people write them. Durations are seconds, sizes are bytes."""

from __future__ import annotations

import math
import re

_SECONDS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_WORDS = {"second": 1.0, "seconds": 1.0, "minute": 60.0, "minutes": 60.0, "hour": 3600.0, "hours": 3600.0}
_WORDS |= {"day": 86400.0, "days": 86400.0}
_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([a-z]+)\s*", re.ASCII)
_CLOCK = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,9})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{0,9})?(?:e[+-]?[0-9]{1,2})?", re.ASCII | re.IGNORECASE)
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*(?:([kmgtp])(i?)b?|b)?", re.ASCII | re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}

LONGEST_S = 10 * 365 * 86400.0
DURATION_FORMS = "a duration such as 30s, 5m, 1h30m, 2d, 1-12:00:00 or a number of seconds"
SIZE_FORMS = "a size such as 512M, 4G, 1.5GiB or a number of bytes"


def parse_duration(text: str) -> float:
    """Seconds of "90", "30s", "1h30m", "2 days", or Slurm's "M:S", "H:M:S", "D-H", "D-H:M", "D-H:M:S".

    A number alone is seconds. Raises ValueError (with the accepted forms) for anything else, negative or over 10 years.
    """
    text = text.strip().lower()
    seconds = _number(text)
    if seconds is None:
        seconds = _clock(text)
    if seconds is None:
        seconds = _parts(text)
    if seconds is None and text.startswith("-"):
        raise ValueError(f"a duration cannot be negative; expected {DURATION_FORMS}")
    if seconds is None or not math.isfinite(seconds):
        raise ValueError(f"expected {DURATION_FORMS}")
    if seconds > LONGEST_S:
        raise ValueError("is longer than ten years")
    return seconds


def format_duration(seconds: float) -> str:
    """Short, for people: "0.35s", "45s", "5m", "1h30m", "1d12h"; at most two units."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if not math.isfinite(seconds):
        return "unlimited"
    if seconds < 10 and round(seconds, 2) != round(seconds):
        return f"{seconds:.2g}s"
    rest = round(seconds)
    shown: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            shown.append(f"{count}{unit}")
        elif shown:
            break
        if len(shown) == 2:
            break
    return "".join(shown) or "0s"


def slurm_time(seconds: float) -> str:
    """As sbatch wants it, "D-HH:MM:SS", rounded up to whole seconds."""
    minutes, second = divmod(math.ceil(seconds), 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"{day}-{hour:02d}:{minute:02d}:{second:02d}"


def parse_size(text: str) -> int:
    """Bytes of "4096", "512M", "1.5GiB": powers of 1024 as in Slurm, with or without i and B. Raises ValueError."""
    matched = _SIZE.fullmatch(text.strip())
    if not matched:
        raise ValueError(f"expected {SIZE_FORMS}")
    number, unit, _ = matched.groups()
    return round(float(number) * 1024 ** _POWERS[unit.lower()]) if unit else round(float(number))


def format_size(size: float) -> str:
    """For people: "512 B", "1.5 KiB", "4.0 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _clock(text: str) -> float | None:
    """Slurm: with days the fields are hours, minutes, seconds; without, two fields are minutes and seconds."""
    matched = _CLOCK.fullmatch(text)
    if not matched or (matched[1] is None and matched[3] is None):
        return None
    days, first, second, third = (int(part) if part else 0 for part in matched.groups())
    if second > 59 or third > 59 or (matched[1] is not None and first > 23):
        return None
    if matched[1] is None and matched[4] is None:
        return first * 60.0 + second
    return days * 86400.0 + first * 3600.0 + second * 60.0 + third


def _parts(text: str) -> float | None:
    total, position, last = 0.0, 0, math.inf
    while position < len(text):
        matched = _PART.match(text, position)
        if not matched:
            return None
        size = _SECONDS.get(matched[2]) or _WORDS.get(matched[2])
        if size is None or size >= last:
            return None
        total, position, last = total + float(matched[1]) * size, matched.end(), size
    return total if text else None
