"""The supervisor's end of the wire: accepts connections, keeps the authenticated ones, counts the refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from itertools import count
from types import MappingProxyType

from slurm_elastic.wire.frames import Decoders
from slurm_elastic.wire.link import Handler, Limits, Link

__all__ = ["Handler", "Limits", "Link", "WireServer"]

log = logging.getLogger(__name__)

_COUNTED_PEERS = 1000  # addresses that are counted one by one
_OTHERS = "others"


class WireServer:
    """Listens on one address. Use `await WireServer.start(...)`, later `await close()`.

    `links` are the peers that were welcomed and are still there. `refusals` counts, by IP address, the connections
    that failed: strangers, wrong token, malformed messages (not those that the handler answered with Refused).
    """

    def __init__(self, token: bytes, handler: Handler, limits: Limits) -> None:
        self.token = token
        self.handler = handler
        self.limits = limits
        self.decoders = Decoders()
        self.links: set[Link] = set()
        self.host = ""
        self.port = 0
        self._sockets: set[Link] = set()
        self._strangers: set[Link] = set()
        self._all_lost = asyncio.Event()
        self._is_closing = False
        self._refusals: dict[str, int] = {}
        self._numbers = count(1)
        self._server: asyncio.Server | None = None

    @classmethod
    async def start(
        cls, host: str, token: bytes, handler: Handler, *, port: int = 0, limits: Limits | None = None
    ) -> WireServer:
        """Listen on `host` (an address of this machine) only; port 0 picks a free one. OSError if it cannot be had."""
        server = cls(token, handler, limits or Limits())
        loop = asyncio.get_running_loop()
        server._server = await loop.create_server(server._new_link, host, port, backlog=4096)
        server.host, server.port = server._server.sockets[0].getsockname()[:2]
        return server

    @property
    def refusals(self) -> Mapping[str, int]:
        return MappingProxyType(self._refusals)

    async def close(self) -> None:
        """Stop listening, send what is queued, close all links (the handler hears of each). Takes `closing_s`."""
        if self._server is None:
            return
        self._is_closing = True
        self._server.close()
        self._server = None
        for link in tuple(self._sockets):
            link.close("the supervisor ends")
        while self._sockets:
            self._all_lost.clear()
            await self._all_lost.wait()

    def _new_link(self) -> Link:
        return Link(next(self._numbers), self)

    # ---- called by links

    def opened(self, link: Link) -> str:
        self._sockets.add(link)
        if self._is_closing:
            return "it came when the supervisor ended"
        self._strangers.add(link)
        if len(self._sockets) > self.limits.connections:
            return f"more than {self.limits.connections} connections"
        if len(self._strangers) > self.limits.strangers:
            return f"more than {self.limits.strangers} connections that are not authenticated yet"
        return ""

    def welcomed(self, link: Link) -> None:
        self._strangers.discard(link)
        self.links.add(link)

    def refused(self, link: Link, reason: str) -> None:
        known = link.peer in self._refusals or len(self._refusals) < _COUNTED_PEERS
        peer = link.peer if known else _OTHERS
        before = self._refusals.get(peer, 0)
        self._refusals[peer] = before + 1
        if before == 0:  # the rest only counts: a flood must not fill the log
            log.warning("refused a connection from %s: %s", link.peer, reason)

    def gone(self, link: Link) -> None:
        self._strangers.discard(link)
        self.links.discard(link)

    def lost(self, link: Link) -> None:
        self._sockets.discard(link)
        if not self._sockets:
            self._all_lost.set()
