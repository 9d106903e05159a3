"""What the command line asks of a running supervisor: one small JSON file each in <run>/requests/."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from slurm_elastic.machine.events import Event, ScaleRequested, StopRequested

log = logging.getLogger(__name__)

LONGEST_BYTES = 4096
MOST_NODES = 999_999  # as many digits as `slurm-elastic scale` takes


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ask: Literal["scale", "stop"]
    nodes: Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)] | None = None
    reason: str = ""


def waiting_requests(folder: Path) -> Iterator[tuple[Path, Event]]:
    """Requests in the order of their names. The caller removes a file once it has taken the request over.

    A file that is no request is removed here and logged.
    """
    for path in sorted(folder.glob("*.json")):
        try:
            with path.open("rb") as file:
                request = msgspec.json.decode(file.read(LONGEST_BYTES + 1), type=Request)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.MsgspecError) as broken:
            log.warning("request dropped file=%s problem=%s", path.name, broken)
            with contextlib.suppress(OSError):  # a folder stays, and is no request the next time either
                path.unlink(missing_ok=True)
            continue
        yield path, _fact(request)


def _fact(request: Request) -> Event:
    if request.ask == "stop":
        return StopRequested(reason=request.reason or "asked by the user")
    return ScaleRequested(nodes=request.nodes)
