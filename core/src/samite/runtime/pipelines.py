"""What each rank of a pipeline does in a step, one thing after another. Pure: engines carry it out.

All ranks go through one list: the pipeline's programs in order, and behind each what it sends. A rank does those of its
stages, and starts its end of each transfer where the list has it; it waits for a value where it first reads it. So both
ends start their transfers in one order, and no two wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from samite.hal.program import Pipeline, StageProgram
from samite.schedules.flow import INDEX, Join

__all__ = ["ALL", "Complete", "Deed", "Deeds", "Key", "Receive", "Run", "Send"]

ALL = -1
"""In place of a microbatch's number: of all of them."""


class Key(NamedTuple):
    """A value as a rank holds it: of one microbatch, or of `ALL`."""

    value: int
    microbatch: int


@dataclass(frozen=True)
class Run:
    """A program's turn; `program` is its index, `reads` its arguments, `terms` the joins that take in results. After
    this and any deed, a rank needs the values `lets_go` no more."""

    program: int
    microbatch: int
    reads: tuple[Key, ...]
    makes: tuple[Key, ...]
    terms: tuple[Join, ...]
    lets_go: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Complete:
    """All terms of a join are there."""

    join: Join
    lets_go: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Send:
    key: Key
    target: int
    lets_go: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Receive:
    """The value is like argument `position` of program `program`; where no program reads it (`program` is -1), like the
    pipeline's result of that number."""

    key: Key
    source: int
    program: int
    position: int
    lets_go: tuple[Key, ...] = ()


Deed = Run | Complete | Send | Receive


class Deeds:
    """`of` has for each of the `ranks` indices on the pipeline's axis all that it does in one step, in order."""

    def __init__(self, pipeline: Pipeline, ranks: int) -> None:
        self.pipeline, self.ranks = pipeline, ranks
        self.of: list[list[Deed]] = [[] for _ in range(ranks)]
        self._list()
        self.of = [self._letting_go(each, index) for index, each in enumerate(self.of)]

    def index(self, stage: int) -> int:
        """Of a stage, on the pipeline's axis."""
        return stage % self.ranks

    @cached_property
    def _terms(self) -> dict[int, list[Join]]:
        found: dict[int, list[Join]] = {}
        for join in self.pipeline.joins:
            found.setdefault(join.term, []).append(join)
        return found

    @cached_property
    def _turning(self) -> set[int]:
        """Values of which there is one a microbatch."""
        return {value for program in self.pipeline.programs if program.each for value in program.makes}

    @cached_property
    def _readers(self) -> dict[int, set[int]]:
        """The indices on the axis that need a value which they do not make before the loop."""
        programs = self.pipeline.programs
        own = {(p.stage, value) for p in programs if _is_early(p) for value in p.makes}
        found: dict[int, set[int]] = {}
        for program in programs:
            for port in program.reads:
                if (program.stage, port.value) not in own:
                    found.setdefault(port.value, set()).add(self.index(program.stage))
        for value, home in zip(self.pipeline.returns, self.pipeline.return_homes, strict=True):
            found.setdefault(value, set()).add(self.index(home))
        return found

    def _list(self) -> None:
        for value, home in enumerate(self.pipeline.argument_homes):
            if home is not None:
                self._transfer(Key(value, ALL), self.index(home))
        numbered = list(enumerate(self.pipeline.programs))
        early = [(number, p) for number, p in numbered if _is_early(p)]
        for number, program in sorted(early, key=lambda each: _turn(each[1].phase)):
            for microbatch in range(self.pipeline.microbatches) if program.each else (ALL,):
                self._run(number, microbatch)
            self._complete(program)
        for number, microbatch in self.pipeline.order:
            self._run(number, microbatch)
        looped = [p for p in self.pipeline.programs if p.each and not _is_early(p)]
        for program in looped:
            self._complete(program)
        for program in looped:
            for join in self._joins(program):
                self._transfer(Key(join.value, ALL), self.index(program.stage))
        late = [(number, p) for number, p in numbered if not p.each and not _is_early(p)]
        for number, _ in sorted(late, key=lambda each: _turn(each[1].phase)):
            self._run(number, ALL)

    def _run(self, number: int, microbatch: int) -> None:
        program = self.pipeline.programs[number]
        reads = tuple(
            Key(port.value, microbatch if port.value in self._turning or port.value == INDEX else ALL)
            for port in program.reads
        )
        makes = tuple(Key(value, microbatch) for value in program.makes)
        self.of[self.index(program.stage)].append(Run(number, microbatch, reads, makes, tuple(self._joins(program))))
        if not _is_early(program):  # which every stage that needs it has of its own
            for key in makes:
                self._transfer(key, self.index(program.stage))

    def _joins(self, program: StageProgram) -> Iterator[Join]:
        for value in program.makes:
            yield from self._terms.get(value, ())

    def _complete(self, program: StageProgram) -> None:
        self.of[self.index(program.stage)] += [Complete(join) for join in self._joins(program)]

    def _transfer(self, key: Key, source: int) -> None:
        for target in sorted(self._readers.get(key.value, ())):
            if target != source:
                self.of[source].append(Send(key, target))
                self.of[target].append(Receive(key, source, *self._like(key.value, target)))

    def _like(self, value: int, index: int) -> tuple[int, int]:
        for number, program in enumerate(self.pipeline.programs):
            if self.index(program.stage) == index:
                for position, port in enumerate(program.reads):
                    if port.value == value and port.cut < 0:
                        return number, position
        return -1, self.pipeline.returns.index(value)

    def _letting_go(self, done: Sequence[Deed], index: int) -> list[Deed]:
        """Each deed with the values that the rank needs no more after it."""
        returned = zip(self.pipeline.returns, self.pipeline.return_homes, strict=True)
        seen = {Key(value, ALL) for value, home in returned if self.index(home) == index}
        found: list[Deed] = []
        for deed in reversed(done):
            touched = dict.fromkeys(_touched(deed))
            last = tuple(key for key in touched if key not in seen and self._passes(key))
            seen.update(touched)
            found.append(replace(deed, lets_go=last))
        return found[::-1]

    def _passes(self, key: Key) -> bool:
        """Whether a value is the pipeline's own, and no argument."""
        return key.value >= len(self.pipeline.argument_homes)


def _touched(deed: Deed) -> Sequence[Key]:
    if isinstance(deed, Run):
        return (*deed.reads, *deed.makes, *(Key(join.value, ALL) for join in deed.terms))
    return (Key(deed.join.value, ALL),) if isinstance(deed, Complete) else (deed.key,)


def _is_early(program: StageProgram) -> bool:
    return program.phase.startswith(("before", "count"))


def _turn(phase: str) -> tuple[int, str]:
    """before.0, count.0, before.1, ...; update.0, update.1, ..."""
    name, _, number = phase.partition(".")
    return int(number), name
