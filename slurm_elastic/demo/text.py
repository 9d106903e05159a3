"""The text that the demo learns: the Jargon File where it is installed, else the help topics of Python itself."""

from __future__ import annotations

import gzip
from pathlib import Path

JARGON = Path("/usr/share/doc/jargon-text/jargon.txt.gz")
HELD_OUT = 16  # every 16th block of the text is held out for the final loss
BLOCK_BYTES = 4096


def load_text(source: Path = JARGON) -> tuple[str, bytes]:
    """(name, bytes) of the text. The Jargon File is in the public domain; `pydoc_data.topics` comes with Python."""
    if source.exists():
        return "the Jargon File", gzip.decompress(source.read_bytes())
    from pydoc_data.topics import topics

    return "Python's help topics", "\n".join(topics[key] for key in sorted(topics)).encode()


def split(text: bytes) -> tuple[bytes, bytes]:
    """(training text, held-out text): whole blocks, so that both contain every part of the book."""
    blocks = [text[at : at + BLOCK_BYTES] for at in range(0, len(text), BLOCK_BYTES)]
    held_out = b"".join(blocks[HELD_OUT - 1 :: HELD_OUT])
    training = b"".join(block for number, block in enumerate(blocks) if number % HELD_OUT != HELD_OUT - 1)
    return training, held_out
