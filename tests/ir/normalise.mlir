// RUN: normalise()
//
// Canonical ops; copies, equal ops and dead ops gone.

// -----

// What nobody uses goes, with what it used.
!x = !torch.vtensor<[4],f32>
module {
  func.func @main(%x: !x) -> !x {
    // CHECK: func.func @main
    // CHECK-NEXT: [[Y:%.+]] = torch.aten.relu %arg0
    // CHECK-NEXT: return [[Y]]
    %dead = torch.aten.exp %x : !x -> !x
    %deader = torch.aten.log %dead : !x -> !x
    %y = torch.aten.relu %x : !x -> !x
    return %y : !x
  }
}

// -----

// Copies are the value, and so is a cast to the dtype that it has; a cast to another one is not.
!x = !torch.vtensor<[4],f32>
!h = !torch.vtensor<[4],bf16>
module {
  func.func @main(%x: !x) -> (!x, !x, !h) {
    // CHECK: [[H:%.+]] = torch.aten._to_copy %arg0, {{.*}} -> !torch.vtensor<[4],bf16>
    // CHECK-NEXT: return %arg0, %arg0, [[H]]
    %none = torch.constant.none
    %false = torch.constant.bool false
    %f32 = torch.constant.int 6
    %bf16 = torch.constant.int 15
    %a = torch.aten.clone %x, %none : !x, !torch.none -> !x
    %b = torch.aten.detach %a : !x -> !x
    %c = torch.aten._to_copy %b, %f32, %none, %none, %none, %false, %none : !x, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !x
    %h = torch.aten._to_copy %c, %bf16, %none, %none, %none, %false, %none : !x, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !h
    return %b, %c, %h : !x, !x, !h
  }
}

// -----

// Views of the shape that it has are the value, and so is all of a dim; a part of it is not.
!x = !torch.vtensor<[4,2],f32>
!y = !torch.vtensor<[3,2],f32>
module {
  func.func @main(%x: !x) -> (!x, !y) {
    // CHECK: [[S:%.+]] = torch.aten.slice.Tensor %arg0
    // CHECK-NEXT: return %arg0, [[S]]
    %zero = torch.constant.int 0
    %one = torch.constant.int 1
    %two = torch.constant.int 2
    %four = torch.constant.int 4
    %false = torch.constant.bool false
    %shape = torch.prim.ListConstruct %four, %two : (!torch.int, !torch.int) -> !torch.list<int>
    %a = torch.aten.view %x, %shape : !x, !torch.list<int> -> !x
    %b = torch.aten.expand %a, %shape, %false : !x, !torch.list<int>, !torch.bool -> !x
    %c = torch.aten.slice.Tensor %b, %zero, %zero, %four, %one : !x, !torch.int, !torch.int, !torch.int, !torch.int -> !x
    %d = torch.aten.slice.Tensor %c, %zero, %one, %four, %one : !x, !torch.int, !torch.int, !torch.int, !torch.int -> !y
    return %c, %d : !x, !y
  }
}

// -----

// Equal ops of one phase are one, through copies and chains; in another phase they are computed again.
!x = !torch.vtensor<[4],f32>
#a = loc("forward:1"("train.py":1:0))
#b = loc("forward:2"("train.py":2:0))
#c = loc("backward:1"("train.py":1:0))
module {
  func.func @main(%x: !x) -> (!x, !x, !x) {
    // CHECK: [[E:%.+]] = torch.aten.exp %arg0
    // CHECK-NEXT: [[R:%.+]] = torch.aten.relu [[E]]
    // CHECK-NEXT: [[F:%.+]] = torch.aten.exp %arg0
    // CHECK-NEXT: return [[R]], [[R]], [[F]]
    %none = torch.constant.none
    %e = torch.aten.exp %x : !x -> !x loc(#a)
    %r = torch.aten.relu %e : !x -> !x loc(#a)
    %copy = torch.aten.clone %x, %none : !x, !torch.none -> !x loc(#b)
    %f = torch.aten.exp %copy : !x -> !x loc(#b)
    %s = torch.aten.relu %f : !x -> !x loc(#b)
    %g = torch.aten.exp %x : !x -> !x loc(#c)
    return %r, %s, %g : !x, !x, !x
  }
}

// -----

// Literals tell ops apart: 1, 1.0 and true, and which random op of the step it is.
!x = !torch.vtensor<[4],f32>
!s = !torch.vtensor<[],si64>
module {
  func.func @main(%x: !x, %seed: !s) -> (!x, !x, !x, !x) {
    // CHECK: torch.aten.add.Scalar
    // CHECK: torch.aten.add.Scalar
    // CHECK-NOT: torch.aten.add.Scalar
    // CHECK: torch.operator "torch.samite.philox_uniform"
    // CHECK: torch.operator "torch.samite.philox_uniform"
    %one = torch.constant.int 1
    %real = torch.constant.float 1.0
    %two = torch.constant.int 2
    %four = torch.constant.int 4
    %a = torch.aten.add.Scalar %x, %one, %one : !x, !torch.int, !torch.int -> !x
    %b = torch.aten.add.Scalar %x, %real, %one : !x, !torch.float, !torch.int -> !x
    %size = torch.prim.ListConstruct %four : (!torch.int) -> !torch.list<int>
    %c = torch.operator "torch.samite.philox_uniform"(%seed, %one, %size) : (!s, !torch.int, !torch.list<int>) -> !x
    %d = torch.operator "torch.samite.philox_uniform"(%seed, %two, %size) : (!s, !torch.int, !torch.list<int>) -> !x
    return %a, %b, %c, %d : !x, !x, !x, !x
  }
}

// -----

// A mean is a sum by a global count, in float32 for 16 bits.
!x = !torch.vtensor<[4,6],bf16>
!y = !torch.vtensor<[4],bf16>
module {
  func.func @main(%x: !x) -> !y {
    // CHECK: [[W:%.+]] = torch.aten._to_copy %arg0, {{.*}} -> !torch.vtensor<[4,6],f32>
    // CHECK: [[S:%.+]] = torch.aten.sum.dim_IntList [[W]]
    // CHECK: [[D:%.+]] = torch.aten.div.Scalar [[S]], %int6
    // CHECK: [[M:%.+]] = torch.aten._to_copy [[D]], {{.*}} -> !torch.vtensor<[4],bf16>
    // CHECK-NEXT: return [[M]]
    %last = torch.constant.int -1
    %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %none = torch.constant.none
    %y = torch.aten.mean.dim %x, %dims, %false, %none : !x, !torch.list<int>, !torch.bool, !torch.none -> !y
    return %y : !y
  }
}

// -----

// What is made like another value does not depend on it: the exponential is dead.
!x = !torch.vtensor<[4],f32>
module {
  func.func @main(%x: !x) -> !x {
    // CHECK: func.func @main
    // CHECK-NOT: torch.aten.exp
    // CHECK: [[F:%.+]] = torch.aten.full
    // CHECK-NEXT: return [[F]]
    %none = torch.constant.none
    %false = torch.constant.bool false
    %e = torch.aten.exp %x : !x -> !x
    %ones = torch.aten.ones_like %e, %none, %none, %none, %false, %none : !x, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !x
    return %ones : !x
  }
}
