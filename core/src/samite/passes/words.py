"""Quantities as people read them."""

from __future__ import annotations

__all__ = ["bytes_in_words", "seconds_in_words"]


def bytes_in_words(nbytes: int) -> str:
    from rich.filesize import decimal  # at first use: passes are imported with samite

    return decimal(nbytes)


def seconds_in_words(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
