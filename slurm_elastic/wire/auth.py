"""Who is there: both ends prove that they know the run's token, without saying it. Pure: bytes in, bytes out.

    client → server   greeting (16 bytes) + client nonce (32)
    server → client   server nonce (32) + HMAC(token, "server" + both nonces)
    client → server   HMAC(token, "client" + both nonces)

Each direction then has a key of its own, made from the token and both nonces: what was heard on one connection is
worth nothing on another (replay), nor when sent back to its sender (reflection).
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field

from slurm_elastic.errors import AuthenticationError

GREETING = b"slurm-elastic/1\n"
NONCE_BYTES = 32
PROOF_BYTES = 32
GREETING_BYTES = len(GREETING) + NONCE_BYTES
CHALLENGE_BYTES = NONCE_BYTES + PROOF_BYTES


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """One key for each direction of one connection."""

    to_server: bytes = field(repr=False)
    to_client: bytes = field(repr=False)


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def greet(client_nonce: bytes) -> bytes:
    return GREETING + client_nonce


def looks_like_greeting(data: bytes) -> bool:
    """Whether `data` is, or may become, a greeting: so that a stranger is refused at the first wrong byte."""
    return data[: len(GREETING)] == GREETING[: len(data)]


def read_greeting(data: bytes) -> bytes:
    """The client's nonce."""
    if len(data) != GREETING_BYTES or not looks_like_greeting(data):
        raise AuthenticationError("this is not a slurm-elastic peer of our version")
    return data[len(GREETING) :]


def challenge(token: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """What the server answers to a greeting."""
    return server_nonce + _proof(token, b"server", client_nonce, server_nonce)


def answer(token: bytes, client_nonce: bytes, data: bytes) -> tuple[bytes, SessionKeys]:
    """What the client answers to the challenge `data`, and the keys. Raises AuthenticationError for a false server."""
    server_nonce, proof = data[:NONCE_BYTES], data[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(token, b"server", client_nonce, server_nonce)):
        raise AuthenticationError(
            "what listens there does not know this run's token",
            fix="another program took the port; the next try re-reads",
        )
    return _proof(token, b"client", client_nonce, server_nonce), _keys(token, client_nonce, server_nonce)


def accept(token: bytes, client_nonce: bytes, server_nonce: bytes, proof: bytes) -> SessionKeys:
    """The keys, if the client's proof is right. Raises AuthenticationError if not."""
    if not hmac.compare_digest(proof, _proof(token, b"client", client_nonce, server_nonce)):
        raise AuthenticationError("the peer does not know this run's token")
    return _keys(token, client_nonce, server_nonce)


def _proof(token: bytes, who: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.digest(token, b"slurm-elastic proof " + who + client_nonce + server_nonce, "sha256")


def _keys(token: bytes, client_nonce: bytes, server_nonce: bytes) -> SessionKeys:
    def key(direction: bytes) -> bytes:
        return hmac.digest(token, b"slurm-elastic key " + direction + client_nonce + server_nonce, "sha256")

    return SessionKeys(to_server=key(b"to server"), to_client=key(b"to client"))
