"""What the owner of workers and the workers share: channels, segments and their places, the board."""

from __future__ import annotations

import os
import pickle
import threading
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from samite.errors import OutOfMemory, SamiteError, UnsupportedOp, WorkerError
from samite.hal.shared import Segment
from samite.layout import Layout
from samite.runtime.arena import PAGE, SEGMENT, Arena, Location
from samite.runtime.board import ENTRIES, ROW, Board, Sequenced
from samite.runtime.buffers import Buffer, Buffers
from samite.runtime.channel import PACKET, pair
from samite.runtime.messages import Failure


@given(st.binary(max_size=200), st.integers(0, 3))
def test_messages_arrive_whole_and_in_order(text: bytes, large: int) -> None:
    here, there = pair()
    sent = [("a", text), text * 3 * PACKET if large else None or 0, {"x": (1, 2.0)}]
    writer = threading.Thread(target=lambda: [here.send(message) for message in sent])
    writer.start()
    assert [there.receive(10)[0] for _ in sent] == sent
    writer.join()
    here.close()
    with pytest.raises(EOFError):
        there.receive(10)
    with pytest.raises(OSError, match=r"[Pp]ipe|[Cc]onnection"):
        there.send("x")


def test_descriptors_come_beside_messages_of_any_size() -> None:
    here, there = pair()
    segment = Segment.create(8)
    segment.bytes.fill_(5)
    for message in ("small", "x" * 2 * PACKET):
        here.send(message, [segment.fd])
        got, (fd,) = there.receive(10)
        assert got == message
        assert fd != segment.fd
        other = Segment(fd)
        assert other.bytes.tolist() == [5] * 8
        other.bytes[0] = 7
        assert segment.bytes[0] == 7
        segment.bytes[0] = 5


def test_nothing_to_receive() -> None:
    here, there = pair()
    with pytest.raises(TimeoutError):
        there.receive(0.01)
    here.send("x")
    assert there.receive(0.01)[0] == "x"


def test_a_segment_outlives_its_descriptor_and_its_tensor_the_segment() -> None:
    segment = Segment.create(10)
    view = segment.bytes[2:4]
    segment.close()
    segment.close()
    view.fill_(3)
    assert view.tolist() == [3, 3]
    with pytest.raises(OutOfMemory, match="1,152,921,504,606,846,976"):
        Segment.create(1 << 60)


def test_descriptors_run_out() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 2, hard))
    try:
        with pytest.raises(OutOfMemory, match="no shared memory"):
            [Segment.create(1) for _ in range(9)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Places(RuleBasedStateMachine):
    """The arena against a plain list of what is held: places never overlap, and what is given back is used again."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[Location, int] = {}

    @initialize(ranks=st.integers(1, 5))
    def start(self, ranks: int) -> None:
        self.ranks, self.arena = ranks, Arena(ranks)

    @rule(nbytes=st.integers(0, 3 * PAGE), shared=st.booleans(), data=st.data())
    def allocate(self, nbytes: int, shared: bool, data: st.DataObject) -> None:
        some = tuple(sorted(data.draw(st.sets(st.integers(0, self.ranks - 1)))))
        location = self.arena.allocate(nbytes, shared=shared, ranks=some)
        assert location.stride == 0 if shared else location.stride >= nbytes
        ranks = some or range(self.ranks)
        views = {rank: self.arena.view(location, rank, torch.uint8, (nbytes,)) for rank in range(self.ranks)}
        for rank in ranks:
            views[rank].fill_(rank)
        if not shared:
            assert all((views[rank] == rank).all() for rank in ranks)
        assert all(view.shape == ((nbytes,) if rank in ranks else (0,)) for rank, view in views.items())
        self.held[location] = max(nbytes, 1) if shared else location.stride * len(ranks)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.held:
            location = data.draw(st.sampled_from(sorted(self.held)))
            self.arena.release(location)
            del self.held[location]

    @invariant()
    def apart(self) -> None:
        spans = sorted((at.segment, at.offset, at.offset + size) for at, size in self.held.items())
        for (segment, _, end), (after, start, _) in pairwise(spans):
            assert segment < after or end <= start

    def teardown(self) -> None:
        for location in self.held:
            self.arena.release(location)
        assert self.arena.allocate(SEGMENT // self.ranks - PAGE).offset == 0, "all of it is one range again"
        self.arena.close()


TestPlaces = Places.TestCase
TestPlaces.settings = settings(max_examples=30, stateful_step_count=25)


def test_a_place_that_cannot_be_made_leaves_the_arena_as_it_was() -> None:
    arena = Arena(2)
    first = arena.allocate(10)
    with pytest.raises(OutOfMemory):
        arena.allocate(1 << 60)
    assert arena.allocate(10) == Location(0, 2 * first.stride, first.stride)


class Transactions(RuleBasedStateMachine):
    """Buffers against a model that copies all values at every step; a value here is what lies at the location."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(1)
        self.buffers = Buffers(self.arena)
        self.now: dict[int, float] = {}
        self.before: list[dict[int, float]] = []  # each step under way; what is put or freed since counts in all
        self.value = 0.0
        self.steps = 0
        self.late: list[tuple[Location, float]] = []  # a worker writes no state before the step before is over

    def tensor(self, location: Location) -> torch.Tensor:
        return self.arena.view(location, 0, torch.float64, ())

    def made(self) -> Buffer:
        self.value += 1
        buffer = Buffer(Layout(()), torch.float64, (), self.arena.allocate(8))
        self.tensor(buffer.current).fill_(self.value)
        return buffer

    @rule(number=st.integers(0, 4))
    def put(self, number: int) -> None:
        self.buffers.put(number, self.made())
        for values in (self.now, *self.before):
            values[number] = self.value

    @rule(number=st.integers(0, 4))
    def free(self, number: int) -> None:
        self.buffers.free([number])
        for values in (self.now, *self.before):
            values.pop(number, None)

    @rule(chosen=st.sets(st.integers(0, 4)), new=st.sets(st.integers(0, 4)))
    def step(self, chosen: set[int], new: set[int]) -> None:
        if len(self.before) == 2:
            return
        self.before.append(dict(self.now))
        replaced = [number for number in chosen - new if number in self.now]
        flipped = [self.buffers[number] for number in replaced]
        places = [self.buffers.reserve(buffer) for buffer in flipped]
        made = [(number, self.made()) for number in new]
        self.steps += 1
        self.buffers.open(self.steps, flipped, made)
        for number, place in zip(replaced, places, strict=True):
            self.value += 1
            self.late.append((place, self.value))
            self.now[number] = self.value
        if len(self.before) == 1:
            self.write()
        self.now.update((number, self.tensor(buffer.current).item()) for number, buffer in made)

    def write(self) -> None:
        for place, value in self.late:
            self.tensor(place).fill_(value)
        self.late.clear()

    @rule()
    def commit(self) -> None:
        if self.before:
            self.buffers.commit()
            self.before.pop(0)
            self.write()

    @rule()
    def roll_back(self) -> None:
        if self.before:
            self.now = self.before[0]
            self.late.clear()
            self.before.clear()
            self.buffers.roll_back()

    @invariant()
    def same(self) -> None:
        for number in range(5):
            if number in self.now and not self.late:
                assert self.tensor(self.buffers[number].current).item() == self.now[number]
        assert set(self.buffers._held) == set(self.now)

    def teardown(self) -> None:
        while self.before:
            self.commit()
        self.buffers.free(range(5))
        assert not self.arena._sizes, "every location was given back"


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=40, stateful_step_count=25)


class Nothing:
    """A communicator whose collectives do nothing, or raise."""

    def all_reduce(self, x: torch.Tensor, axes: tuple[str, ...], reduce_type: str) -> torch.Tensor:
        if reduce_type == "prod":
            raise RuntimeError("no product")
        return x

    def permute(self, x: torch.Tensor, axes: tuple[str, ...], pairs: object) -> torch.Tensor:
        return x


def board(ranks: int) -> tuple[Board, list[Sequenced]]:
    made = Board(Board.create(ranks), ranks)
    return made, [Sequenced(Nothing(), row) for row in made.rows]  # type: ignore[arg-type]


def test_the_board_fits_its_row_and_counts_steps() -> None:
    assert ROW % 8 == 0
    made, _ = board(3)
    for rank, row in enumerate(made.rows):
        row.end(rank + 4)
    assert made.done() == 4


@given(st.integers(0, 3 * ENTRIES), st.integers(0, ENTRIES - 2))
def test_ranks_that_agree_are_not_blamed(shared: int, ahead: int) -> None:
    made, (one, other) = board(2)
    for n in range(shared + ahead):
        x = torch.ones(n % 7)
        one.all_reduce(x, ("dp",), "sum")
        if n < shared:
            other.all_reduce(x, ("dp",), "sum")
    assert made.disagreement(1) is None


@pytest.mark.parametrize(
    ("x", "axes", "kind", "text"),
    [
        (torch.ones(3), ("dp",), "sum", r"float32[3]"),
        (torch.ones(2, dtype=torch.int64), ("dp",), "sum", "int64[2]"),
        (torch.ones(2), ("tp", "dp"), "sum", "over tp.dp"),
        (torch.ones(2), ("dp",), "max", "all_reduce max"),
    ],
)
def test_ranks_that_differ_are_named(x: torch.Tensor, axes: tuple[str, ...], kind: str, text: str) -> None:
    made, (one, two, other) = board(3)
    for communicator in (one, two, other):
        communicator.permute(torch.ones(1), ("dp",), [(0, 1)])
    for communicator in (one, two):
        communicator.all_reduce(torch.ones(2), ("dp",), "sum")
    other.all_reduce(x, axes, kind)
    rank, how = made.disagreement(1) or (0, "")
    assert rank == 2
    assert text in how
    assert how.startswith("rank 0 asks for all_reduce sum over dp of float32[2], rank 2 for ")
    ends = []
    for row in made.rows:
        row.end(1)
        ends.append(row.at_end(1))
    assert ends[0] == ends[1] != ends[2]


def test_a_rank_that_ended_while_its_peer_asks_for_more() -> None:
    made, (one, other) = board(2)
    for communicator in (one, other):
        communicator.all_reduce(torch.ones(2), ("dp",), "sum")
    made.rows[1].end(1)
    assert made.disagreement(1) is None
    one.all_reduce(torch.ones(2), ("dp",), "sum")
    assert made.disagreement(1) == (
        1,
        "rank 0 asks for all_reduce sum over dp of float32[2], rank 1 has ended the step",
    )


def test_an_error_within_a_collective_is_known_as_such() -> None:
    _, (one,) = board(1)
    one.all_reduce(torch.ones(1), ("dp",), "sum")
    assert not one.inside
    with pytest.raises(RuntimeError):
        one.all_reduce(torch.ones(1), ("dp",), "prod")
    assert one.inside


class _Odd(SamiteError):
    """An error of a plugin that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("odd", help="none")
        self.held = threading.Lock()


@pytest.mark.parametrize("error", [ValueError("v"), WorkerError("w", rank=9), UnsupportedOp("u", help="h"), _Odd()])
def test_failures_travel(error: Exception) -> None:
    try:
        raise error
    except Exception as raised:
        failure = pickle.loads(pickle.dumps(Failure.of(raised, rank=3, step=7, in_collective=True)))
    assert (failure.rank, failure.step, failure.in_collective) == (3, 7, True)
    seen = failure.to_error()
    text = str(seen) + "".join(getattr(seen, "__notes__", ()))
    assert "rank 3" in text or seen.rank == 3
    assert "test_failures_travel" in text
    assert (seen.help == "h") == isinstance(error, UnsupportedOp)
