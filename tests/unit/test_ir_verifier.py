"""What the verifiers of the dist dialect refuse, and with what words. What they accept is in tests/ir/dialect.mlir."""

from __future__ import annotations

import pytest

from samite.errors import VerifyError
from samite.ir.module import Module
from samite.mesh import Mesh

X, WIDE = "!torch.vtensor<[8,16],f32>", "!torch.vtensor<[8,16],f64>"
MESH = '#dist.mesh<["dp", "tp"], [2, 4], ["cpu"]>'


def refused(line: str, mesh: str = MESH) -> str:
    """The diagnostic of a module with this line in its function, whose argument is %x: 8 × 16 of float32."""
    body = f"func.func @main(%x: {X}) -> {X} {{\n{line}\nreturn %x : {X}\n}}"
    with pytest.raises(VerifyError) as raised:
        Module.parse(f"module attributes {{dist.mesh = {mesh}}} {{\n{body}\n}}")
    return str(raised.value)


def of_x(op: str, attributes: str, result: str = X) -> str:
    return f'"dist.{op}"(%x) {{{attributes}}} : ({X}) -> {result}'


def all_reduce(result: str = X, **attributes: str) -> str:
    every = {"axes": '["dp"]', "reduce_type": '"sum"', "algorithm": '"auto"', "chunk_bytes": "0"} | attributes
    return of_x("all_reduce", ", ".join(f"{key} = {value}" for key, value in every.items()), result)


def start(**attributes: str) -> str:
    every = {"collective": '"all_reduce"', "axes": '["dp"]', "dims": "[]", "pairs": "[]", "reduce_type": '"sum"'}
    every |= {"token": "0", "wait_on": "[]", "barrier_id": "-1", "algorithm": '"auto"', "chunk_bytes": "0"} | attributes
    return of_x("start", ", ".join(f"{key} = {value}" for key, value in every.items()))


@pytest.mark.parametrize(
    "axes, error",
    [
        ("[]", "axes must be named once each, have []"),
        ('["dp", "dp"]', "axes must be named once each, have ['dp', 'dp']"),
        ('["pp"]', "axis ['pp'] is not in the mesh {'dp': 2, 'tp': 4}"),
        ('"dp"', "axes must be a list of names, have 'dp'"),
        ("[1]", "axes must be a list of names, have (1,)"),
    ],
)
def test_axes(axes: str, error: str) -> None:
    assert f"dist.all_reduce: {error}" in refused(all_reduce(axes=axes))
    assert f"dist.axis_index: {error}" in refused(
        f'%i = "dist.axis_index"() {{axes = {axes}}} : () -> !torch.vtensor<[],si64>'
    )


@pytest.mark.parametrize(
    "line, error",
    [
        (all_reduce(reduce_type='"avg"'), "reduce_type 'avg' is none of ('sum', 'max', 'min', 'prod')"),
        (all_reduce(reduce_type="unit"), "reduce_type cannot be unit"),
        (all_reduce(algorithm='"magic"'), "algorithm 'magic' is none of ('auto', 'direct', 'ring', "),
        (all_reduce(WIDE), "result must be [8, 16] of float32, have [8, 16] of float64"),
        (all_reduce("i32"), "a tensor is needed, have i32"),
        (of_x("all_gather", 'axes = ["dp"], dim = 0'), "result must be [16, 16] of float32, have [8, 16] of float32"),
        (of_x("all_gather", 'axes = ["dp"], dim = 2'), "dim 2 is no dim of 2"),
        (of_x("all_gather", 'axes = ["dp"], dim = -1'), "dim -1 is no dim of 2"),
        (of_x("all_gather", 'axes = ["dp"], dim = "rows"'), "dim 'rows' is no dim of 2"),
        (
            of_x("reduce_scatter", 'axes = ["dp", "tp"], dim = 0, reduce_type = "sum"'),
            "result must be [1, 16] of float32, have [8, 16] of float32",
        ),
        (
            of_x("reduce_scatter", 'axes = ["dp"], dim = 0, reduce_type = "mean"', "!torch.vtensor<[4,16],f32>"),
            "reduce_type 'mean' is none of",
        ),
        (
            of_x("all_to_all", 'axes = ["tp"], split_dim = 1, concat_dim = 0'),
            "result must be [32, 4] of float32, have [8, 16] of float32",
        ),
        (of_x("permute", 'axes = ["tp"], pairs = [[0, 1], [2, 1]]'), "pairs must have each target once"),
        (of_x("permute", 'axes = ["tp"], pairs = [[0, 4]]'), "pairs name peer 4 of 4"),
        (of_x("permute", 'axes = ["tp"], pairs = [[0, 1, 2]]'), "pairs must be (source, target), have ((0, 1, 2),)"),
        (of_x("permute", 'axes = ["tp"], pairs = [0, 1]'), "pairs must be (source, target), have (0, 1)"),
        (of_x("shard", 'axes = ["dp"], dim = 1'), "result must be [8, 8] of float32, have [8, 16] of float32"),
        (of_x("constrain", 'layout = "[8, 16"'), "layout '[8, 16' is no layout"),
        (of_x("constrain", 'layout = "[8, 17]"'), "layout [8, 17] does not lay out (8, 16)"),
        (of_x("constrain", 'layout = "[8:pp, 16]"'), 'a layout uses axis "pp", which the mesh lacks'),
        (of_x("constrain", 'layout = "[8, 16]"', WIDE), "result must be [8, 16] of float32"),
        (of_x("reshard", 'src = "[8:dp, 16:dp]", dst = "[8, 16]"'), 'axis "dp" is used twice'),
        (of_x("reshard", 'src = "[8, 16]", dst = "[4, 32]"'), "dst [4, 32] does not lay out (8, 16)"),
        (of_x("reshard", 'src = "[8, 16]", dst = "[8, 16]"', WIDE), "result must be [8, 16] of float32"),
        (
            '%i = "dist.axis_index"() {axes = ["dp"]} : () -> !torch.vtensor<[2],f64>',
            "result must be [] of int64, have [2] of float64",
        ),
        (
            '%i = "dist.valid_length"() {axes = ["dp"], size = -1} : () -> !torch.vtensor<[],si64>',
            "size must be 0 or more, have -1",
        ),
        (
            '%i = "dist.valid_length"() {axes = ["dp"], size = 7} : () -> !torch.vtensor<[],f32>',
            "result must be [] of int64, have [] of float32",
        ),
        (of_x("transfer", 'source = "cpu", target = "gpu"'), "'gpu' is no device kind of the mesh, which has ('cpu',)"),
        (of_x("transfer", 'source = "cpu", target = "cpu"'), "'cpu' is on both ends"),
        (of_x("wait", ""), "waits for the result of a dist.start, have that of an argument"),
        (start(collective='"broadcast"'), "collective 'broadcast' is none of ('all_reduce', 'all_gather', "),
        (start(reduce_type='""'), "reduce_type '' does not fit all_reduce"),
        (start(collective='"all_gather"', dims="[0]"), "reduce_type 'sum' does not fit all_gather"),
        (start(dims="[0]"), "all_reduce has 0 dims, have (0,)"),
        (start(collective='"reduce_scatter"', dims="[2]"), "dim 2 is no dim of 2"),
        (start(collective='"reduce_scatter"', dims="[1]"), "result must be [8, 8] of float32, have [8, 16] of float32"),
        (
            start(collective='"all_to_all"', dims="[1, 0]", reduce_type='""'),
            "result must be [16, 8] of float32, have [8, 16] of float32",
        ),
        (start(pairs="[[0, 1]]"), "all_reduce has no pairs"),
        (start(algorithm='"magic"'), "algorithm 'magic' does not fit all_reduce"),
        (
            start(collective='"all_gather"', dims="[0]", reduce_type='""', algorithm='"ring"'),
            "algorithm 'ring' does not fit all_gather",
        ),
        (start(collective='"permute"', reduce_type='""', pairs="[[0, 2]]"), "pairs name peer 2 of 2"),
    ],
)
def test_ops(line: str, error: str) -> None:
    found = refused(line)
    name = line[line.index("dist.") :].partition('"')[0]
    assert f"{name}: " in found
    assert error in found


def test_a_shard_has_equal_parts() -> None:
    nine = "!torch.vtensor<[9],f32>"
    line = f'%y = torch.vtensor.literal(dense<0.0> : tensor<9xf32>) : {nine}\n"dist.shard"(%y) '
    line += f'{{axes = ["tp"], dim = 0}} : ({nine}) -> !torch.vtensor<[2],f32>'
    assert "dist.shard: dim 0 of [9] is not a multiple of 4 peers" in refused(line)


def test_what_mlir_itself_checks() -> None:
    missing = of_x("all_reduce", 'axes = ["dp"], reduce_type = "sum", algorithm = "auto"')
    assert 'attribute "chunk_bytes" is expected but not provided' in refused(missing)
    assert "expected base attribute 'builtin.integer'" in refused(all_reduce(chunk_bytes='"big"'))
    assert "unregistered operation 'dist.broadcast'" in refused(of_x("broadcast", 'axes = ["dp"]'))


@pytest.mark.parametrize(
    "mesh, error",
    [
        ('#dist.mesh<["dp", "tp"], [2], ["cpu"]>', "a mesh has one size for each axis, named once"),
        ('#dist.mesh<["dp", "dp"], [2, 2], ["cpu"]>', "a mesh has one size for each axis, named once"),
        ('#dist.mesh<["dp"], [0], ["cpu"]>', "a mesh has one size for each axis, named once"),
        ('#dist.mesh<"dp", [2], ["cpu"]>', "expected base attribute 'builtin.array'"),
        ('"dp=2"', '"dp=2" is no #dist.mesh'),
    ],
)
def test_meshes(mesh: str, error: str) -> None:
    assert error in refused(all_reduce(), mesh)


def test_a_module_without_a_mesh_says_so() -> None:
    with pytest.raises(VerifyError, match=r"has no #dist\.mesh"):
        _ = Module.empty().mesh
    assert Module.empty(Mesh(("dp", "tp"), (2, 4))).mesh == {"dp": 2, "tp": 4}


def test_without_a_mesh_an_op_is_checked_for_what_does_not_need_one() -> None:
    """Fragments are traced without a mesh; they are checked where they are inlined."""

    def loose(line: str) -> str:
        return f"func.func @main(%x: {X}) -> {X} {{\n{line}\nreturn %x : {X}\n}}"

    Module.parse(loose(of_x("all_gather", 'axes = ["pp"], dim = 1', "!torch.vtensor<[8,99],f32>")))
    for wrong in (all_reduce(reduce_type='"avg"'), all_reduce(WIDE), all_reduce(axes="[]")):
        with pytest.raises(VerifyError, match=r"dist\.all_reduce"):
            Module.parse(loose(wrong))
