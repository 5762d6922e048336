// RUN: verify()
//
// What every local module promises to backends. What MLIR itself checks of an op is in tests/unit/test_ir_verifier.py.

// -----

// A local module passes as it is.
!x = !torch.vtensor<[4,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  // CHECK: func.func @main(%arg0: !torch.vtensor<[4,4],f32> {dist.layout = "[8:dp, 4]", samite.name = "x"})
  // CHECK-SAME: -> (!torch.vtensor<[4,4],f32> {dist.layout = "[8:dp, 4]", samite.alias = 0 : i64})
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[8:dp, 4]"}) -> (!x {dist.layout = "[8:dp, 4]", samite.alias = 0}) {
    // CHECK-NEXT: torch.aten.relu %arg0
    %y = torch.aten.relu %x : !x -> !x
    return %y : !x
  }
}

// -----

// An argument is what its layout gives a rank.
// ERROR: x: [8:dp, 4] is (4, 4) on a rank, have (8, 4)
!x = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[8:dp, 4]"}) -> (!x {dist.layout = "[8, 4]"}) {
    return %x : !x
  }
}

// -----

// Every argument has a layout.
// ERROR: x has no layout
!x = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {samite.name = "x"}) -> (!x {dist.layout = "[8, 4]"}) {
    return %x : !x
  }
}

// -----

// A result is what its layout gives a rank.
// ERROR: result 0: [8:dp, 4] is (4, 4) on a rank, have (8, 4)
!x = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[8, 4]"}) -> (!x {dist.layout = "[8:dp, 4]"}) {
    return %x : !x
  }
}

// -----

// No op of the global program is left; the error has the user's line.
// ERROR: dist.reshard is left after partition   (train.py:7)
!x = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[8, 4]"}) -> (!x {dist.layout = "[8, 4]"}) {
    %y = "dist.reshard"(%x) {src = "[8, 4]", dst = "[8:dp, 4]"} : (!x) -> !x loc("forward:3"("train.py":7:0))
    return %x : !x
  }
}

// -----

// Nor a wish.
// ERROR: dist.constrain is left after partition
!x = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[8, 4]"}) -> (!x {dist.layout = "[8, 4]"}) {
    %y = "dist.constrain"(%x) {layout = "[8:dp, 4]"} : (!x) -> !x
    return %y : !x
  }
}

// -----

// State is replaced by what has its dtype.
// ERROR: w is replaced by a float64 of [4], it is a float32 of [4]
!w = !torch.vtensor<[4],f32>
!d = !torch.vtensor<[4],f64>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%w: !w {samite.name = "w", dist.layout = "[4]"}, %d: !d {samite.name = "d", dist.layout = "[4]"})
      -> (!d {dist.layout = "[4]", samite.alias = 0}) {
    return %d : !d
  }
}

// -----

// State is replaced by what lies as it does, even where the local shapes agree.
// ERROR: w is replaced by a float32 of [8:dp], it is a float32 of [8:tp]
!w = !torch.vtensor<[4],f32>
module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [2, 2], ["cpu"]>} {
  func.func @main(%w: !w {samite.name = "w", dist.layout = "[8:tp]"}) -> (!w {dist.layout = "[8:dp]", samite.alias = 0}) {
    return %w : !w
  }
}

// -----

// A local module says for which mesh it is.
// ERROR: the module has no #dist.mesh
!w = !torch.vtensor<[4],f32>
module {
  func.func @main(%w: !w {samite.name = "w", dist.layout = "[4]"}) -> (!w {dist.layout = "[4]"}) {
    return %w : !w
  }
}

// -----

// Products of unlike dtypes are refused here; torch's fake kernels let them pass.
// ERROR: mm: operands of bfloat16 and float32   (train.py:9)
!w = !torch.vtensor<[4,4],f32>
!h = !torch.vtensor<[4,4],bf16>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%w: !w {samite.name = "w", dist.layout = "[4, 4]"}, %h: !h {samite.name = "h", dist.layout = "[4, 4]"}) -> (!w {dist.layout = "[4, 4]"}) {
    %y = torch.aten.mm %w, %h : !w, !h -> !w loc("train.py":9:0)
    return %y : !w
  }
}

// -----

// What is started is waited for, once.
// ERROR: dist.start 3: one dist.wait uses what it starts
!x = !torch.vtensor<[4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[4]"}) -> (!x {dist.layout = "[4]"}) {
    %s = "dist.start"(%x) {collective = "all_reduce", axes = ["dp"], dims = [], pairs = [], reduce_type = "sum", token = 3 : i64, wait_on = [], barrier_id = -1 : i64, algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %y = torch.aten.relu %s : !x -> !x
    return %y : !x
  }
}

// -----

// Each start has its own token.
// ERROR: dist.start 3 has another's token
!x = !torch.vtensor<[4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[4]"}) -> (!x {dist.layout = "[4]"}) {
    %s = "dist.start"(%x) {collective = "all_reduce", axes = ["dp"], dims = [], pairs = [], reduce_type = "sum", token = 3 : i64, wait_on = [], barrier_id = -1 : i64, algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %y = "dist.wait"(%s) : (!x) -> !x
    %t = "dist.start"(%y) {collective = "all_reduce", axes = ["dp"], dims = [], pairs = [], reduce_type = "sum", token = 3 : i64, wait_on = [], barrier_id = -1 : i64, algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %z = "dist.wait"(%t) : (!x) -> !x
    return %z : !x
  }
}

// -----

// It may wait on what was started before it.
// ERROR: dist.start 3 waits on [4], not all started before it
!x = !torch.vtensor<[4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[4]"}) -> (!x {dist.layout = "[4]"}) {
    %s = "dist.start"(%x) {collective = "all_reduce", axes = ["dp"], dims = [], pairs = [], reduce_type = "sum", token = 3 : i64, wait_on = [4], barrier_id = -1 : i64, algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %y = "dist.wait"(%s) : (!x) -> !x
    return %y : !x
  }
}
