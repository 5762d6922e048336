// RUN: overlap_communication()
//
// A collective whose result is not needed at once is started where it stood, and waited for where it is needed.

// -----

// What needs no result of it runs in between.
!x = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x, %y: !x) -> !x {
    // CHECK: [[S:%.+]] = "dist.start"(%arg0) {algorithm = "auto", axes = ["dp"], barrier_id = -1 : i64, chunk_bytes = 0 : i64, collective = "all_reduce", dims = [], pairs = [], reduce_type = "sum", token = 0 : i64, wait_on = []}
    // CHECK-NEXT: [[Y:%.+]] = torch.aten.tanh %arg1
    // CHECK-NEXT: [[R:%.+]] = "dist.wait"([[S]])
    // CHECK-NEXT: torch.aten.mul.Tensor [[Y]], [[R]]
    %r = "dist.all_reduce"(%x) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %a = torch.aten.tanh %y : !x -> !x
    %b = torch.aten.mul.Tensor %a, %r : !x, !x -> !x
    return %b : !x
  }
}

// -----

// What is needed at once stays as it is.
!x = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x, %y: !x) -> (!x, !x) {
    // CHECK-NOT: dist.start
    // CHECK: [[R:%.+]] = "dist.all_reduce"(%arg0)
    // CHECK-NEXT: torch.aten.tanh [[R]]
    %r = "dist.all_reduce"(%x) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %a = torch.aten.tanh %r : !x -> !x
    %b = torch.aten.tanh %y : !x -> !x
    return %a, %b : !x, !x
  }
}

// -----

// A bucket is taken apart when a part of it is needed, not before; the other collectives go on meanwhile.
!x = !torch.vtensor<[8],f32>
!half = !torch.vtensor<[4],f32>
!sq = !torch.vtensor<[2,2],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x, %y: !sq) -> (!sq, !half) {
    // CHECK: [[S:%.+]] = "dist.start"(%arg0)
    // CHECK-NEXT: [[Y:%.+]] = torch.aten.tanh %arg1
    // CHECK-NEXT: [[G:%.+]] = "dist.all_gather"([[Y]])
    // CHECK-NEXT: [[Z:%.+]] = torch.aten.tanh [[G]]
    // CHECK: [[W:%.+]] = "dist.wait"([[S]])
    // CHECK: torch.prim.ListUnpack
    // CHECK: torch.aten.view
    // CHECK: torch.aten.sub.Tensor
    %r = "dist.all_reduce"(%x) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %zero = torch.constant.int 0
    %one = torch.constant.int 1
    %two = torch.constant.int 2
    %four = torch.constant.int 4
    %sizes = torch.prim.ListConstruct %four, %four : (!torch.int, !torch.int) -> !torch.list<int>
    %parts = torch.aten.split_with_sizes %r, %sizes, %zero : !x, !torch.list<int>, !torch.int -> !torch.list<vtensor>
    %p:2 = torch.prim.ListUnpack %parts : !torch.list<vtensor> -> !half, !half
    %shape = torch.prim.ListConstruct %two, %two : (!torch.int, !torch.int) -> !torch.list<int>
    %m = torch.aten.view %p#0, %shape : !half, !torch.list<int> -> !sq
    %a = torch.aten.tanh %y : !sq -> !sq
    %g = "dist.all_gather"(%a) {axes = ["dp"], dim = 0 : i64} : (!sq) -> !torch.vtensor<[4,2],f32>
    %h = torch.aten.tanh %g : !torch.vtensor<[4,2],f32> -> !torch.vtensor<[4,2],f32>
    %k = "dist.shard"(%h) {axes = ["dp"], dim = 0 : i64} : (!torch.vtensor<[4,2],f32>) -> !sq
    %b = torch.aten.sub.Tensor %k, %m, %one : !sq, !sq, !torch.int -> !sq
    return %b, %p#1 : !sq, !half
  }
}

// -----

// RUN: overlap_communication(topology({"device": {"bandwidth": 1e9, "latency": 0}, "links": {"dp": {"latency": 0, "bandwidth": 1e9}}, "overlap": {"efficiency": 1, "latency": 1e-8}}))
//
// With a topology: what has its operands early starts as early as its time needs, and no earlier.

// -----

// A gather of 4 KB takes as long as one of these ops: it starts one before its use, not where the program starts.
!x = !torch.vtensor<[512],f32>
!y = !torch.vtensor<[1024],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%w: !x, %x: !y) -> !y {
    // CHECK: [[A:%.+]] = torch.aten.tanh %arg1
    // CHECK-NEXT: [[S:%.+]] = "dist.start"(%arg0) {{.*}}collective = "all_gather"
    // CHECK-NEXT: [[B:%.+]] = torch.aten.tanh [[A]]
    // CHECK-NEXT: [[W:%.+]] = "dist.wait"([[S]])
    // CHECK-NEXT: torch.aten.mul.Tensor [[B]], [[W]]
    %a = torch.aten.tanh %x : !y -> !y
    %b = torch.aten.tanh %a : !y -> !y
    %g = "dist.all_gather"(%w) {axes = ["dp"], dim = 0 : i64} : (!x) -> !y
    %c = torch.aten.mul.Tensor %b, %g : !y, !y -> !y
    return %c : !y
  }
}

// -----

// What would hide less than it costs to start stays as it is.
!x = !torch.vtensor<[2],f32>
!y = !torch.vtensor<[1],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%w: !x, %x: !y) -> (!x, !y) {
    // CHECK-NOT: dist.start
    %r = "dist.all_reduce"(%w) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %a = torch.aten.tanh %x : !y -> !y
    return %r, %a : !x, !y
  }
}

// -----

// RUN: overlap_communication(topology({"device": {"bandwidth": 1e9, "latency": 0}, "links": {"dp": {"latency": 0, "bandwidth": 1e9}}, "overlap": {"efficiency": 1, "latency": 1e-8}}), memory=17000)
//
// A rank may not hold more than it has.

// -----

// While the second op runs 14 KB are held: 4 more are too many.
!x = !torch.vtensor<[512],f32>
!y = !torch.vtensor<[1024],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%w: !x, %x: !y) -> (!y, !y, !y) {
    // CHECK-NOT: dist.start
    // CHECK: dist.all_gather
    %a = torch.aten.tanh %x : !y -> !y
    %b = torch.aten.tanh %a : !y -> !y
    %g = "dist.all_gather"(%w) {axes = ["dp"], dim = 0 : i64} : (!x) -> !y
    %c = torch.aten.mul.Tensor %b, %g : !y, !y -> !y
    return %a, %b, %c : !y, !y, !y
  }
}

// -----

// RUN: overlap_communication(topology({}))
//
// The usual numbers are those of ranks that share their cores.

// -----

// Then nothing runs beside anything.
!x = !torch.vtensor<[1000000],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x, %y: !x) -> !x {
    // CHECK-NOT: dist.start
    %r = "dist.all_reduce"(%x) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    %a = torch.aten.tanh %y : !x -> !x
    %b = torch.aten.mul.Tensor %a, %r : !x, !x -> !x
    return %b : !x
  }
}
