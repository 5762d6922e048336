// RUN: constrain({"model.*.weight": {"tp": Shard(0)}, "model.up.weight": {"tp": Shard(-1), "dp": Shard(0)}, "x": {"dp": Shard(0)}})
//
// The user's placements become layouts of the arguments that they name.

// -----

// By name and by pattern; of several the last wins, axis by axis; what none names is left open.
!m = !torch.vtensor<[8,6],f32>
!v = !torch.vtensor<[6],f32>
module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [2, 2], ["cpu"]>} {
  // CHECK: %arg0: !torch.vtensor<[8,6],f32> {dist.layout = "[8:tp, 6]", samite.name = "model.down.weight"}
  // CHECK-SAME: %arg1: !torch.vtensor<[8,6],f32> {dist.layout = "[8:dp, 6:tp]", samite.name = "model.up.weight"}
  // CHECK-SAME: %arg2: !torch.vtensor<[8,6],f32> {dist.layout = "[8:dp, 6]", samite.name = "x"}
  // CHECK-SAME: %arg3: !torch.vtensor<[6],f32> {samite.name = "model.up.bias"}
  func.func @main(%a: !m {samite.name = "model.down.weight"}, %b: !m {samite.name = "model.up.weight"},
                  %x: !m {samite.name = "x"}, %c: !v {samite.name = "model.up.bias"}) -> !m {
    // CHECK-NEXT: return %arg2
    return %x : !m
  }
}

// -----

// RUN: constrain({"x": {"tp": Shard(1), "dp": Shard(1)}})
//
// Two axes on one dim cut it in mesh order, unevenly too; the placement of a gradient's owner is not repeated here.
!m = !torch.vtensor<[8,5],f32>
module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [2, 2], ["cpu"]>} {
  // CHECK: {dist.layout = "[8, 5:dp.tp]", samite.name = "x"}
  // CHECK-SAME: %arg1: !torch.vtensor<[8,5],f32> {samite.name = "x.grad", samite.owner = "x"}
  func.func @main(%x: !m {samite.name = "x"}, %g: !m {samite.name = "x.grad", samite.owner = "x"}) -> !m {
    return %x : !m
  }
}

// -----

// RUN: constrain({"weights": {"tp": Shard(0)}})
//
// A placement that names nothing is refused, with the nearest names.
// ERROR: placement "weights" names no argument
!m = !torch.vtensor<[8,5],f32>
module attributes {dist.mesh = #dist.mesh<["tp"], [2], ["cpu"]>} {
  func.func @main(%x: !m {samite.name = "weight"}) -> !m {
    return %x : !m
  }
}

// -----

// RUN: constrain({"x": {"tp": Shard(2)}})
//
// So is a dim that the tensor lacks.
// ERROR: x: Shard(dim=2) over "tp": no dim 2 in a tensor of shape (8, 5)
!m = !torch.vtensor<[8,5],f32>
module attributes {dist.mesh = #dist.mesh<["tp"], [2], ["cpu"]>} {
  func.func @main(%x: !m {samite.name = "x"}) -> !m {
    return %x : !m
  }
}

// -----

// RUN: constrain({"x": {"pp": Shard(0)}})
//
// And an axis that the mesh lacks.
// ERROR: x: the mesh has no axis "pp"
!m = !torch.vtensor<[8,5],f32>
module attributes {dist.mesh = #dist.mesh<["tp"], [2], ["cpu"]>} {
  func.func @main(%x: !m {samite.name = "x"}) -> !m {
    return %x : !m
  }
}

// -----

// RUN: constrain({"x": {"tp": "rows"}})
//
// And what is no placement.
// ERROR: 'rows' is not a placement
!m = !torch.vtensor<[8,5],f32>
module attributes {dist.mesh = #dist.mesh<["tp"], [2], ["cpu"]>} {
  func.func @main(%x: !m {samite.name = "x"}) -> !m {
    return %x : !m
  }
}
