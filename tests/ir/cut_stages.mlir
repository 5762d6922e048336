// RUN: cut_stages(2, inputs=(0,), marks=(1,))
//
// A local function becomes one for each stage and phase.

// -----

// Two layers and their gradients: the second stage hands back what the first one waits for, and does the rest later.
!x = !torch.vtensor<[8,4],f32>
!m = !torch.vtensor<[4,4],f32>
!w = !torch.vtensor<[4,4],f32>
module attributes {dist.mesh = #dist.mesh<["mb"], [2], ["cpu"]>} {
  // CHECK: func.func @stage0.forward(
  // CHECK-SAME: dist.barrier_id = -1 : i64, dist.cuts = [0, -1], {{.*}} dist.phase = "forward", dist.reads = [0, 1]
  // CHECK-SAME: dist.stage = 0 : i64, dist.wait_on = []
  // CHECK: func.func @stage0.backward_weight(
  // CHECK-SAME: dist.wait_on = ["stage1.backward_input"]
  // CHECK: func.func @stage0.update.0(
  // CHECK-SAME: dist.barrier_id = 0 : i64, {{.*}} dist.wait_on = ["stage0.backward_weight"]
  // CHECK: func.func @stage1.forward(
  // CHECK-SAME: dist.wait_on = ["stage0.forward"]
  // CHECK: func.func @stage1.backward_input(
  // CHECK-SAME: dist.wait_on = ["stage1.forward"]
  // CHECK: func.func @stage1.backward_weight(
  // CHECK-SAME: dist.wait_on = ["stage0.forward", "stage1.forward"]
  // CHECK: func.func @stage1.update.0(
  // CHECK-SAME: dist.barrier_id = 0 : i64, {{.*}} dist.wait_on = ["stage1.backward_weight"]
  func.func @main(%x: !x {samite.name = "x"}, %w: !w {samite.name = "w"}, %v: !w {samite.name = "v"})
      -> (!w {samite.alias = 1}, !w {samite.alias = 2}) {
    %zero = torch.constant.int 0
    %one = torch.constant.int 1
    %m = "dist.shard"(%x) {axes = ["mb"], dim = 0 : i64} : (!x) -> !m loc(#f0)
    %h = torch.aten.mm %m, %w : !m, !w -> !m loc(#f0)
    %y = torch.aten.mm %h, %v : !m, !w -> !m loc(#f1)
    %ht = torch.aten.transpose.int %h, %zero, %one : !m, !torch.int, !torch.int -> !m loc(#b1)
    %gv = torch.aten.mm %ht, %y : !m, !m -> !w loc(#b1)
    %vt = torch.aten.transpose.int %v, %zero, %one : !w, !torch.int, !torch.int -> !w loc(#b1)
    %gh = torch.aten.mm %y, %vt : !m, !w -> !m loc(#b1)
    %mt = torch.aten.transpose.int %m, %zero, %one : !m, !torch.int, !torch.int -> !m loc(#b0)
    %gw = torch.aten.mm %mt, %gh : !m, !m -> !w loc(#b0)
    %sv = "dist.all_reduce"(%gv) {axes = ["mb"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!w) -> !w loc(#b1)
    %sw = "dist.all_reduce"(%gw) {axes = ["mb"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!w) -> !w loc(#b0)
    %nv = torch.aten.sub.Tensor %v, %sv, %one : !w, !w, !torch.int -> !w loc(#u)
    %nw = torch.aten.sub.Tensor %w, %sw, %one : !w, !w, !torch.int -> !w loc(#u)
    return %nw, %nv : !w, !w
  }
}
#line = loc("net.py":7:0)
#f0 = loc("forward:0"(#line))
#f1 = loc("forward:1"(#line))
#b1 = loc("backward:1"(#line))
#b0 = loc("backward:0"(#line))
#u = loc("update:-1"(#line))

// -----

// The loop cannot wait for a sum of what is trained over all microbatches.
!x = !torch.vtensor<[8,4],f32>
!m = !torch.vtensor<[4,4],f32>
!w = !torch.vtensor<[4,4],f32>
module attributes {dist.mesh = #dist.mesh<["mb"], [2], ["cpu"]>} {
// ERROR: sub.Tensor needs the whole batch, of which it is given a microbatch at a time   (net.py:9)
  func.func @main(%x: !x {samite.name = "x"}, %w: !w {samite.name = "w"}) -> (!w {samite.alias = 1}) {
    %one = torch.constant.int 1
    %m = "dist.shard"(%x) {axes = ["mb"], dim = 0 : i64} : (!x) -> !m loc(#f0)
    %h = torch.aten.mm %m, %w : !m, !w -> !m loc(#f0)
    %s = "dist.all_reduce"(%h) {axes = ["mb"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!m) -> !m loc(#f0)
    %c = torch.aten.sub.Tensor %h, %s, %one : !m, !m, !torch.int -> !m loc(#f1)
    %t = "dist.all_reduce"(%c) {axes = ["mb"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!m) -> !m loc(#f1)
    return %t : !m
  }
}
#f0 = loc("forward:0"("net.py":8:0))
#f1 = loc("forward:1"("net.py":9:0))
