"""What moves state between devices: the Protocol, and what every implementation counts.

Order of calls: `post` the messages of a step (all of them together), `wait` for the transfer it returns, and so on;
at the end `close`. The k-th message from a to b meets the k-th one that b posted from a; their parts have equal sizes.
Parts are integer views (`transport_parts.bits`) with any strides. They are read, and written, until `wait` returns.
A later transfer may be posted before an earlier one was waited for; they are waited for in the order of posting.

After any error the transport is of no more use, and `abort` tells the peers: nobody waits for one who gave up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch


class Message(NamedTuple):
    """What goes to, or comes from, device `peer`."""

    peer: str
    parts: Sequence[torch.Tensor]


@dataclass(slots=True)
class Traffic:
    """Bytes of parts that were sent and received, by peer: counted when they are handed over, without padding."""

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)


class Transfer(Protocol):
    def wait(self, timeout_s: float) -> None:
        """Until all that was sent is away (the parts may change) and all that is received is in place.

        Raises PeerLost when a peer went away or the time is over, MigrationCancelled after `abort`.
        """
        ...


class Transport(Protocol):
    @property
    def traffic(self) -> Traffic: ...

    def post(self, sends: Sequence[Message], receives: Sequence[Message]) -> Transfer:
        """Begin. Does not block on a peer. Raises PeerLost, MigrationCancelled."""
        ...

    def abort(self) -> None:
        """Give up, from any thread, at any time, also twice: frees a `wait` of this process and those of the peers."""
        ...

    def close(self) -> None:
        """After the last `wait`, or after `abort`. What was sent still arrives."""
        ...
