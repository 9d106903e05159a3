"""Frames on an authenticated connection: bytes in, message bodies out. No socket here.

    4 bytes   length of the body (big endian)
    8 bytes   sequence number, from 0 in each direction
    32 bytes  HMAC-SHA256 by this direction's session key over length, sequence number and body
    n bytes   body: one message as JSON

A frame that is too long, out of order or of a wrong MAC ends the connection; there is no resynchronisation.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from slurm_elastic.errors import AuthenticationError, WireError
from slurm_elastic.wire import messages as m

MAX_MESSAGE_BYTES = 1 << 20
MAC_BYTES = 32
_HEADER = struct.Struct(">IQ")

T = TypeVar("T")

Hello = m.AgentHello | m.WorkerHello
FromAgent = m.AgentNotice | m.StepEnded | m.ProbeAnswer | m.Warned | m.Beat
FromWorker = (
    m.Steps
    | m.Saved
    | m.SaveFailed
    | m.Leaving
    | m.Stayed
    | m.Stumbled
    | m.Regrouped
    | m.RegroupFailed
    | m.Warned
    | m.WorkerNotice
    | m.Beat
)
FromSupervisor = (
    m.Launch
    | m.Kill
    | m.Probe
    | m.Release
    | m.Gate
    | m.Regroup
    | m.Drain
    | m.Published
    | m.Fenced
    | m.Welcome
    | m.Refused
    | m.Beat
)


class Sealer:
    """The sending end of one direction: numbers and signs bodies."""

    __slots__ = ("_key", "_sequence")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._sequence = 0

    def seal(self, body: bytes) -> bytes:
        """The frame of `body`. Frames must be sent in the order they were made. Raises WireError if too long."""
        check_size(body)
        header = _HEADER.pack(len(body), self._sequence)
        self._sequence += 1
        return header + hmac.digest(self._key, header + body, "sha256") + body


class Opener:
    """The receiving end of one direction: checks frames and gives their bodies."""

    __slots__ = ("_buffer", "_key", "_limit", "_sequence")

    def __init__(self, key: bytes, limit: int = MAX_MESSAGE_BYTES) -> None:
        self._key = key
        self._limit = limit
        self._sequence = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Bodies of the frames that are complete now, in order; a part waits for more.

        Raises WireError or AuthenticationError at the first bad frame, after the good ones before it.
        """
        self._buffer += data
        while (body := self._next()) is not None:
            yield body

    def _next(self) -> bytes | None:
        if len(self._buffer) < _HEADER.size:
            return None
        length, sequence = _HEADER.unpack_from(self._buffer)
        if length > self._limit:
            raise WireError(f"a frame of {length} bytes is over the limit of {self._limit}")
        if sequence != self._sequence:
            raise AuthenticationError(f"frame {sequence} where {self._sequence} was due: lost, replayed or forged")
        start = _HEADER.size + MAC_BYTES
        if len(self._buffer) < start + length:
            return None
        body = bytes(self._buffer[start : start + length])
        mac = bytes(self._buffer[_HEADER.size : start])
        due = hmac.digest(self._key, bytes(self._buffer[: _HEADER.size]) + body, "sha256")
        if not hmac.compare_digest(mac, due):
            raise AuthenticationError(f"frame {sequence} has a wrong MAC")
        del self._buffer[: start + length]
        self._sequence += 1
        return body


def check_size(body: bytes) -> None:
    """Raises WireError for a body that no receiver would accept."""
    if len(body) > MAX_MESSAGE_BYTES:
        raise WireError(
            f"a message of {len(body)} bytes is over the limit of {MAX_MESSAGE_BYTES}",
            fix="send it in several smaller ones",
        )


def encode(message: m.Message) -> bytes:
    """The body of a message."""
    return msgspec.json.encode(message)


class Decoders:
    """Decoders by who may say what; each raises WireError on anything else."""

    def __init__(self) -> None:
        self._hello = msgspec.json.Decoder(Hello)
        self._agent = msgspec.json.Decoder(FromAgent)
        self._worker = msgspec.json.Decoder(FromWorker)
        self._supervisor = msgspec.json.Decoder(FromSupervisor)

    def hello(self, body: bytes) -> m.AgentHello | m.WorkerHello:
        return _decode(self._hello, body)

    def from_agent(self, body: bytes) -> m.AnyMessage:
        return _decode(self._agent, body)

    def from_worker(self, body: bytes) -> m.AnyMessage:
        return _decode(self._worker, body)

    def from_supervisor(self, body: bytes) -> m.AnyMessage:
        return _decode(self._supervisor, body)


def _decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
        raise WireError(f"not a message that may come here: {broken}") from broken
