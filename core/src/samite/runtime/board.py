"""What ranks of one host show each other and their owner without messages: a shared page, one row a rank.

It holds how many steps a rank has ended, and which collectives it has asked for. The first tells when a step is over on
all ranks, so that state may be overwritten; the second tells ranks that wait for each other for ever from slow ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from samite.hal.driver import Communicator, InFlight
from samite.hal.shared import Segment
from samite.ir.collectives import AUTO, chosen

__all__ = ["Board", "Row", "Sequenced"]

STEPS = 8  # remembered a rank; more than can be under way
ENTRIES, TEXT = 64, 120  # collectives remembered a rank, and bytes of each one's text
_DONE, _COUNT, _PER_STEP = 0, 1, 2  # words of a row: steps ended, collectives asked for, then (count, hash) a step
WORDS = _PER_STEP + 2 * STEPS
ROW = 8 * WORDS + ENTRIES * (8 + TEXT)


class Board:
    """All rows. The owner makes the segment, workers map it."""

    def __init__(self, segment: Segment, ranks: int) -> None:
        memory = segment.memory
        self.rows = [Row(memory[rank * ROW : (rank + 1) * ROW]) for rank in range(ranks)]

    @staticmethod
    def create(ranks: int) -> Segment:
        """Raises OutOfMemory."""
        segment = Segment.create(ranks * ROW)
        segment.reserve(0, ranks * ROW)
        return segment

    def done(self) -> int:
        """The last step that every rank has ended."""
        return min(row.done for row in self.rows)

    def disagreement(self, step: int) -> tuple[int, str] | None:
        """The first rank whose collectives differ from rank 0's as far as both are remembered, and how."""
        first = self.rows[0]
        for rank, row in enumerate(self.rows[1:], start=1):
            shared = min(first.count, row.count)
            for index in range(max(0, max(first.count, row.count) + 1 - ENTRIES), shared):
                ours, theirs = first.entry(index), row.entry(index)
                if ours and theirs and ours != theirs:
                    return rank, f"rank 0 asks for {ours}, rank {rank} for {theirs}"
            for one, other, a, b in ((first, row, 0, rank), (row, first, rank, 0)):
                if one.done >= step and other.count > (ended := one.at_end(step)[0]):
                    return rank, f"rank {b} asks for {other.entry(ended)}, rank {a} has ended the step"
        return None


class Row:
    """One rank's row. Each word is written by its rank alone, at once."""

    def __init__(self, memory: memoryview) -> None:
        self._words = memory[: 8 * WORDS].cast("q")
        self._entries = memory[8 * WORDS :]
        self.hash = 0  # of all collectives so far, to the rank itself

    @property
    def done(self) -> int:
        return self._words[_DONE]

    @property
    def count(self) -> int:
        return self._words[_COUNT]

    def enter(self, text: bytes) -> None:
        """Notes a collective that the rank is about to ask for."""
        index = self._words[_COUNT]
        start = index % ENTRIES * (8 + TEXT)
        self._entries[start : start + 8 + TEXT] = index.to_bytes(8, "little") + text[:TEXT].ljust(TEXT, b"\0")
        self.hash = zlib.crc32(text, self.hash)
        self._words[_COUNT] = index + 1

    def end(self, step: int) -> None:
        """Notes that the rank has ended a step."""
        at = _PER_STEP + 2 * (step % STEPS)
        self._words[at], self._words[at + 1] = self._words[_COUNT], self.hash
        self._words[_DONE] = step

    def at_end(self, step: int) -> tuple[int, int]:
        """How many collectives the rank had asked for at the end of a step, and the hash of all of them."""
        at = _PER_STEP + 2 * (step % STEPS)
        return self._words[at], self._words[at + 1]

    def entry(self, index: int) -> str:
        """The text of a collective, by number; "" if it is no longer, or not yet, remembered."""
        start = index % ENTRIES * (8 + TEXT)
        entry = bytes(self._entries[start : start + 8 + TEXT])
        if index >= self.count or int.from_bytes(entry[:8], "little") != index:
            return ""
        return entry[8:].rstrip(b"\0").decode(errors="replace")


class Sequenced(Communicator):
    """A communicator that notes every collective on the rank's row before it is asked for."""

    def __init__(self, inner: Communicator, row: Row) -> None:
        self._inner, self._row = inner, row
        self._texts: dict[tuple[Any, ...], bytes] = {}
        self._apart = False
        self.inside = False
        """Whether a collective is under way: an error then is the peers' as likely as this rank's."""

    def all_reduce(
        self, x: torch.Tensor, axes: Sequence[str], reduce_type: str, algorithm: str = AUTO, chunk_bytes: int = 0
    ) -> torch.Tensor:
        return self._call("all_reduce", x, axes, reduce_type, *chosen(algorithm, chunk_bytes))

    def all_gather(self, x: torch.Tensor, axes: Sequence[str], dim: int) -> torch.Tensor:
        return self._call("all_gather", x, axes, dim)

    def reduce_scatter(self, x: torch.Tensor, axes: Sequence[str], dim: int, reduce_type: str) -> torch.Tensor:
        return self._call("reduce_scatter", x, axes, dim, reduce_type)

    def all_to_all(self, x: torch.Tensor, axes: Sequence[str], split_dim: int, concat_dim: int) -> torch.Tensor:
        return self._call("all_to_all", x, axes, split_dim, concat_dim)

    def permute(self, x: torch.Tensor, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
        return self._call("permute", x, axes, tuple(pairs))

    def start(self, verb: str, x: torch.Tensor, axes: Sequence[str], *arguments: Any) -> InFlight:
        self._note(f"start {verb}", x, axes, arguments)
        self.inside = True
        under_way = self._inner.start(verb, x, axes, *arguments)
        self.inside = False
        return _Watched(under_way, self)

    def transfer(self, x: torch.Tensor, axis: str, source: int, target: int) -> InFlight:
        """Not noted: it is the business of two ranks, and others do other things meanwhile."""
        return _Watched(self._inner.transfer(x, axis, source, target), self)

    def barrier(self) -> None:
        self._inner.barrier()

    def close(self) -> None:
        self._inner.close()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """While ranks do different things, as the stages of a pipeline: what they ask for is not to be compared."""
        self._apart = True
        try:
            yield
        finally:
            self._apart = False

    def _call(self, verb: str, x: torch.Tensor, axes: Sequence[str], *arguments: Any) -> torch.Tensor:
        self._note(verb, x, axes, arguments)
        self.inside = True
        result = getattr(self._inner, verb)(x, axes, *arguments)
        self.inside = False
        return result

    def _note(self, verb: str, x: torch.Tensor, axes: Sequence[str], arguments: tuple[Any, ...]) -> None:
        if self._apart:
            return
        key = (verb, tuple(axes), arguments, x.shape, x.dtype)
        if (text := self._texts.get(key)) is None:
            words = (verb, *map(str, arguments), "over", ".".join(axes), "of", f"{x.dtype}{list(x.shape)}")
            text = self._texts[key] = " ".join(words).replace("torch.", "").encode()
        self._row.enter(text)


@dataclass(frozen=True)
class _Watched(InFlight):
    under_way: InFlight
    communicator: Sequenced

    def wait(self) -> torch.Tensor:
        self.communicator.inside = True
        result = self.under_way.wait()
        self.communicator.inside = False
        return result
