"""Which of this host's addresses agents and workers can reach. Chosen and published, never guessed by them."""

from __future__ import annotations

import fcntl
import socket
import struct

from slurm_elastic.errors import UserMistake

SIOCGIFADDR = 0x8915


def choose_address(interface: str = "") -> str:
    """The IPv4 address to listen on.

    `interface` names a network interface (`control.interface` in run.yaml). Without it: the address that this
    host's own name stands for, unless that is a loopback address (Debian's installer writes such an entry),
    then the first other one. 127.0.0.1 only when there is no network at all.
    Raises UserMistake when `interface` does not exist or has no address.
    """
    if interface:
        return _address_of_interface(interface)
    by_name = _addresses_of_name(socket.gethostname())
    by_interface = [address for name, address in _interfaces().items() if name != "lo"]
    for address in (*by_name, *by_interface):
        if not address.startswith("127."):
            return address
    return "127.0.0.1"


def _address_of_interface(interface: str) -> str:
    found = _interfaces()
    if interface not in found:
        known = ", ".join(f"{name} ({address})" for name, address in sorted(found.items()))
        raise UserMistake(
            f"control.interface: {interface!r} has no IPv4 address on {socket.gethostname()}",
            fix=f"use one of: {known or 'none has one'}",
        )
    return found[interface]


def _addresses_of_name(name: str) -> list[str]:
    try:
        answers = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:  # a name that nobody resolves is common inside containers
        return []
    return [str(answer[4][0]) for answer in answers]


def _interfaces() -> dict[str, str]:
    """IPv4 address by interface name, in the kernel's order."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            except OSError:  # an interface without an IPv4 address
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found
