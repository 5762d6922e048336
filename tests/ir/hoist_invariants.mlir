// RUN: normalise(), hoist_invariants()
//
// What a scan computes alike in every iteration, it computes once.

// -----

// A transposed weight is computed before; the next scan takes it whole, not a slice of copies. What nobody uses goes.
!v = !torch.vtensor<[4],f32>
!w = !torch.vtensor<[4,4],f32>
!x = !torch.vtensor<[3,4],f32>
!ws = !torch.vtensor<[3,4,4],f32>
module {
  func.func @main(%c: !v, %x: !x, %w: !w) -> (!v, !v) {
    // CHECK: [[IN:%.+]] = torch.prim.TupleConstruct %arg0, %arg1, %arg2
    // CHECK-NEXT: [[ONE:%.+]] = "dist.scan"([[IN]]) ({
    // CHECK: }) {carried = 1 : i64, sliced = 1 : i64}
    // CHECK-NEXT: [[A:%.+]] = torch.prim.TupleUnpack [[ONE]]
    // CHECK-NEXT: [[T:%.+]] = torch.aten.t %arg2
    // CHECK-NOT: flip
    // CHECK: [[IN2:%.+]] = torch.prim.TupleConstruct %arg0, %arg1, [[T]]
    // CHECK-NEXT: [[TWO:%.+]] = "dist.scan"([[IN2]]) ({
    // CHECK-NEXT: ^bb0({{%.+}}: !torch.vtensor<[4],f32>, {{%.+}}: !torch.vtensor<[4],f32>, [[S:%.+]]: !torch.vtensor<[4,4],f32>):
    // CHECK: torch.aten.mv [[S]]
    // CHECK: }) {carried = 1 : i64, sliced = 1 : i64}
    // CHECK-NEXT: [[B:%.+]] = torch.prim.TupleUnpack [[TWO]]
    // CHECK-NEXT: return [[A]], [[B]]
    %in = torch.prim.TupleConstruct %c, %x, %w : !v, !x, !w -> !torch.tuple<vtensor<[4],f32>, vtensor<[3,4],f32>, vtensor<[4,4],f32>>
    %one = "dist.scan"(%in) ({
    ^bb0(%a: !v, %b: !v, %k: !w):
      %one1 = torch.constant.int 1
      %t = torch.aten.t %k : !w -> !w
      %m = torch.aten.mv %k, %a : !w, !v -> !v
      %n = torch.aten.add.Tensor %m, %b, %one1 : !v, !v, !torch.int -> !v
      %dead = torch.aten.exp %n : !v -> !v
      %r = torch.prim.TupleConstruct %n, %t, %dead : !v, !w, !v -> !torch.tuple<vtensor<[4],f32>, vtensor<[4,4],f32>, vtensor<[4],f32>>
      "dist.yield"(%r) : (!torch.tuple<vtensor<[4],f32>, vtensor<[4,4],f32>, vtensor<[4],f32>>) -> ()
    }) {carried = 1 : i64, sliced = 1 : i64} : (!torch.tuple<vtensor<[4],f32>, vtensor<[3,4],f32>, vtensor<[4,4],f32>>) -> !torch.tuple<vtensor<[4],f32>, vtensor<[3,4,4],f32>, vtensor<[3,4],f32>>
    %y:3 = torch.prim.TupleUnpack %one : !torch.tuple<vtensor<[4],f32>, vtensor<[3,4,4],f32>, vtensor<[3,4],f32>> -> !v, !ws, !x
    %zero = torch.constant.int 0
    %dims = torch.prim.ListConstruct %zero : (!torch.int) -> !torch.list<int>
    %f = torch.aten.flip %y#1, %dims : !ws, !torch.list<int> -> !ws
    %in2 = torch.prim.TupleConstruct %c, %x, %f : !v, !x, !ws -> !torch.tuple<vtensor<[4],f32>, vtensor<[3,4],f32>, vtensor<[3,4,4],f32>>
    %two = "dist.scan"(%in2) ({
    ^bb0(%a: !v, %b: !v, %k: !w):
      %m = torch.aten.mv %k, %a : !w, !v -> !v
      %n = torch.aten.mul.Tensor %m, %b : !v, !v -> !v
      %r = torch.prim.TupleConstruct %n : !v -> !torch.tuple<vtensor<[4],f32>>
      "dist.yield"(%r) : (!torch.tuple<vtensor<[4],f32>>) -> ()
    }) {carried = 1 : i64, sliced = 2 : i64} : (!torch.tuple<vtensor<[4],f32>, vtensor<[3,4],f32>, vtensor<[3,4,4],f32>>) -> !torch.tuple<vtensor<[4],f32>>
    %z = torch.prim.TupleUnpack %two : !torch.tuple<vtensor<[4],f32>> -> !v
    return %y#0, %z : !v, !v
  }
}

// -----

// A function without a scan stays as it is.
!x = !torch.vtensor<[4],f32>
module {
  func.func @main(%x: !x) -> !x {
    // CHECK: [[Y:%.+]] = torch.aten.relu %arg0
    // CHECK-NEXT: return [[Y]]
    %y = torch.aten.relu %x : !x -> !x
    return %y : !x
  }
}
