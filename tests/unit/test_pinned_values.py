"""Values that only some ranks hold, in the lockstep engine: where they lie, what is read, what programs take."""

from __future__ import annotations

import pytest
import torch

from programs import argument, program, split
from samite.errors import InputError, VerifyError
from samite.hal.program import Result
from samite.layout import Layout
from samite.mesh import Mesh
from samite.runtime.lockstep import Lockstep, LockstepWorkers

MESHES = [Mesh(("pp", "dp"), (2, 2)), Mesh(("dp", "pp"), (2, 3)), Mesh(("pp",), (2,))]


def start(mesh: Mesh) -> LockstepWorkers:
    return Lockstep().start(mesh, {})


def layouts(mesh: Mesh) -> list[Layout]:
    """Replicated, unevenly split and owed values of every home."""
    texts = ["[5, 3]", *(["[5:dp, 3]", "[(5 1:dp), 3]", "[5, 3] sum(dp)", "[5, 3] max(dp)"] if "dp" in mesh else [])]
    return [Layout.parse(text).pinned({"pp": stage}) for text in texts for stage in range(mesh["pp"])]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_what_is_written_is_read(mesh: Mesh) -> None:
    workers = start(mesh)
    for number, layout in enumerate(layouts(mesh)):
        value = torch.randn(5, 3)
        workers.write(number, value, layout)
        torch.testing.assert_close(workers.read(number), value, rtol=0, atol=0)
    workers.free(range(len(layouts(mesh))))
    with pytest.raises(InputError, match="no buffer 0"):
        workers.read(0)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_only_the_home_holds_a_value(mesh: Mesh) -> None:
    workers = start(mesh)
    for layout in layouts(mesh):
        workers.write(0, torch.randn(5, 3), layout)
        for rank, local in enumerate(workers._buffers[0].locals):
            held = layout.held_by(mesh.coordinates(rank))
            assert tuple(local.shape) == (layout.local_shape(mesh) if held else (0,))
            assert local.dtype == torch.float32


def test_replicas_are_compared_within_the_home() -> None:
    mesh = MESHES[0]
    workers = start(mesh)
    workers.write(0, torch.zeros(3), Layout.parse("[3] at pp=1"))
    locals = workers._buffers[0].locals
    locals[0] = torch.ones(3)
    assert not workers.read(0).any()
    locals[3] = torch.ones(3)
    with pytest.raises(VerifyError, match="ranks 2 and 3"):
        workers.read(0)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_programs_take_and_give_them(mesh: Mesh) -> None:
    workers, layout = start(mesh), split(4).pinned({"pp": 1})
    adds = program(
        lambda w, x: (w + x, w * 2),
        [argument("w", layout, kind="state"), argument("x", layout)],
        [Result("w", "float32", layout, alias=0), Result("twice", "float32", layout)],
        mesh,
    )
    handle = workers.load(adds, {})
    w, x = torch.randn(4), torch.randn(4)
    workers.write(1, w, layout)
    workers.run(handle, [1, x], [1, 2])
    torch.testing.assert_close(workers.read(1), w + x)
    torch.testing.assert_close(workers.read(2), 2 * w)
    workers.write(1, w, layout.unpinned())
    with pytest.raises(InputError, match=r"laid out as \[4\], the program takes float32 laid out as \[4\] at pp=1"):
        workers.run(handle, [1, x], [1, 2])


def test_a_rank_that_gives_what_it_does_not_hold_is_named() -> None:
    workers, layout = start(MESHES[0]), split(4).pinned({"pp": 1})
    everywhere = program(lambda x: (x + 1,), [argument("x", split(4))], [Result("y", "float32", layout)], MESHES[0])
    handle = workers.load(everywhere, {})
    with pytest.raises(VerifyError, match=r'result "y" is laid out as \[4\] at pp=1, rank 0 gives \[4\]'):
        workers.run(handle, [torch.zeros(4)], [1])
    with pytest.raises(InputError, match="no buffer 1"):
        workers.read(1)
