// RUN: fuse_collectives()
//
// Fewer and smaller collectives with the same result.

// -----

// An all_reduce that only a shard uses is a reduce_scatter, over the shard's axes in the shard's order.
!x = !torch.vtensor<[8,4],f32>
!part = !torch.vtensor<[2,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [2, 2], ["cpu"]>} {
  func.func @main(%x: !x) -> !part {
    // CHECK: func.func @main(%arg0
    // CHECK-NEXT: [[Y:%.+]] = "dist.reduce_scatter"(%arg0) {axes = ["tp", "dp"], dim = 0 : i64, reduce_type = "max"}
    // CHECK-NEXT: return [[Y]]
    %sum = "dist.all_reduce"(%x) {axes = ["dp", "tp"], reduce_type = "max", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %part = "dist.shard"(%sum) {axes = ["tp", "dp"], dim = 0 : i64} : (!x) -> !part
    return %part : !part
  }
}

// -----

// An all_reduce that others use as well stays, and so does one over other axes.
!x = !torch.vtensor<[8,4],f32>
!part = !torch.vtensor<[4,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [2, 2], ["cpu"]>} {
  func.func @main(%x: !x, %y: !x) -> (!part, !x, !part) {
    // CHECK: [[S:%.+]] = "dist.all_reduce"(%arg0)
    // CHECK-NEXT: "dist.shard"([[S]])
    // CHECK-NEXT: [[T:%.+]] = "dist.all_reduce"(%arg1)
    // CHECK-NEXT: "dist.shard"([[T]])
    // CHECK-NOT: reduce_scatter
    %sum = "dist.all_reduce"(%x) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %part = "dist.shard"(%sum) {axes = ["dp"], dim = 0 : i64} : (!x) -> !part
    %other = "dist.all_reduce"(%y) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %cross = "dist.shard"(%other) {axes = ["tp"], dim = 0 : i64} : (!x) -> !part
    return %part, %sum, %cross : !part, !x, !part
  }
}

// -----

// All_reduces in a row are one, over axes in mesh order.
!x = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["pp", "dp", "tp"], [2, 2, 2], ["cpu"]>} {
  func.func @main(%x: !x) -> !x {
    // CHECK: [[Y:%.+]] = "dist.all_reduce"(%arg0) {algorithm = "auto", axes = ["pp", "dp", "tp"], chunk_bytes = 0 : i64, reduce_type = "sum"}
    // CHECK-NEXT: return [[Y]]
    %a = "dist.all_reduce"(%x) {axes = ["tp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %b = "dist.all_reduce"(%a) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %c = "dist.all_reduce"(%b) {axes = ["pp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    return %c : !x
  }
}

// -----

// Not if they reduce in another way, or over an axis twice, which multiplies.
!x = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [2, 2], ["cpu"]>} {
  func.func @main(%x: !x) -> !x {
    // CHECK: "dist.all_reduce"(%arg0) {{.*}}axes = ["tp"]{{.*}}"sum"
    // CHECK-NEXT: "dist.all_reduce"({{.*}}axes = ["dp"]{{.*}}"max"
    // CHECK-NEXT: "dist.all_reduce"({{.*}}axes = ["dp"]{{.*}}"max"
    %a = "dist.all_reduce"(%x) {axes = ["tp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %b = "dist.all_reduce"(%a) {axes = ["dp"], reduce_type = "max", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %c = "dist.all_reduce"(%b) {axes = ["dp"], reduce_type = "max", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    return %c : !x
  }
}

// -----

// Equal gathers are one; the sum of both results then has one operand twice.
!x = !torch.vtensor<[4,4],f32>
!whole = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x) -> (!whole, !torch.vtensor<[4,8],f32>) {
    // CHECK: [[G:%.+]] = "dist.all_gather"(%arg0) {axes = ["dp"], dim = 0 : i64}
    // CHECK-NEXT: [[H:%.+]] = "dist.all_gather"(%arg0) {axes = ["dp"], dim = 1 : i64}
    // CHECK-NOT: all_gather
    // CHECK: torch.aten.add.Tensor [[G]], [[G]],
    %a = "dist.all_gather"(%x) {axes = ["dp"], dim = 0 : i64} : (!x) -> !whole
    %b = "dist.all_gather"(%x) {axes = ["dp"], dim = 0 : i64} : (!x) -> !whole
    %c = "dist.all_gather"(%x) {axes = ["dp"], dim = 1 : i64} : (!x) -> !torch.vtensor<[4,8],f32>
    %one = torch.constant.int 1
    %sum = torch.aten.add.Tensor %a, %b, %one : !whole, !whole, !torch.int -> !whole
    return %sum, %c : !whole, !torch.vtensor<[4,8],f32>
  }
}

// -----

// Two equal all_reduces have two users, so that neither is only sharded.
!x = !torch.vtensor<[8],f32>
!part = !torch.vtensor<[4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x) -> (!part, !x) {
    // CHECK: [[S:%.+]] = "dist.all_reduce"(%arg0)
    // CHECK-NEXT: [[P:%.+]] = "dist.shard"([[S]])
    // CHECK-NEXT: return [[P]], [[S]]
    %a = "dist.all_reduce"(%x) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %part = "dist.shard"(%a) {axes = ["dp"], dim = 0 : i64} : (!x) -> !part
    %b = "dist.all_reduce"(%x) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    return %part, %b : !part, !x
  }
}

// -----

// A shard of what was gathered is the value before; a shard of another dim is not.
!x = !torch.vtensor<[4,4],f32>
!whole = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x, %y: !x) -> (!x, !x, !torch.vtensor<[8,2],f32>) {
    // CHECK-NOT: all_gather"(%arg0)
    // CHECK: [[H:%.+]] = "dist.all_gather"(%arg1)
    // CHECK-NEXT: [[S:%.+]] = "dist.shard"([[H]]) {axes = ["dp"], dim = 1 : i64}
    // CHECK-NEXT: return %arg0, %arg0, [[S]]
    %g = "dist.all_gather"(%x) {axes = ["dp"], dim = 0 : i64} : (!x) -> !whole
    %a = "dist.shard"(%g) {axes = ["dp"], dim = 0 : i64} : (!whole) -> !x
    %b = "dist.shard"(%g) {axes = ["dp"], dim = 0 : i64} : (!whole) -> !x
    %h = "dist.all_gather"(%y) {axes = ["dp"], dim = 0 : i64} : (!x) -> !whole
    %c = "dist.shard"(%h) {axes = ["dp"], dim = 1 : i64} : (!whole) -> !torch.vtensor<[8,2],f32>
    return %a, %b, %c : !x, !x, !torch.vtensor<[8,2],f32>
  }
}
