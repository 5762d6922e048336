// RUN: choose_algorithm(topology({"device": {"bandwidth": 1e9}, "links": {"dp": {"latency": 1e-4, "bandwidth": 1e9}}}), ("direct", "ring", "tree"))
//
// The latency of a link and its bandwidth say how many messages an all_reduce is to take.

// -----

// What is small goes in one message, what is large around the ring, and in between pairs exchange.
!s = !torch.vtensor<[16],f32>
!m = !torch.vtensor<[10000],f32>
!l = !torch.vtensor<[10000000],f32>
module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [8, 2], ["cpu"]>} {
  func.func @main(%s: !s, %m: !m, %l: !l) -> (!s, !m, !l) {
    // CHECK: "dist.all_reduce"(%arg0) {algorithm = "direct", axes = ["dp"], chunk_bytes = 0 : i64
    // CHECK: "dist.all_reduce"(%arg1) {algorithm = "tree", axes = ["dp"], chunk_bytes = 0 : i64
    // CHECK: "dist.all_reduce"(%arg2) {algorithm = "ring", axes = ["dp"], chunk_bytes = 524288 : i64
    %a = "dist.all_reduce"(%s) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!s) -> !s
    %b = "dist.all_reduce"(%m) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!m) -> !m
    %c = "dist.all_reduce"(%l) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!l) -> !l
    return %a, %b, %c : !s, !m, !l
  }
}

// -----

// Links of which nothing is known leave it to the backend, and what the user chose stays.
!s = !torch.vtensor<[16],f32>
module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [8, 2], ["cpu"]>} {
  func.func @main(%s: !s) -> (!s, !s) {
    // CHECK: "dist.all_reduce"(%arg0) {algorithm = "auto", axes = ["tp"]
    // CHECK: "dist.all_reduce"(%arg0) {algorithm = "ring", axes = ["dp"]
    %a = "dist.all_reduce"(%s) {axes = ["tp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!s) -> !s
    %b = "dist.all_reduce"(%s) {axes = ["dp"], reduce_type = "sum", algorithm = "ring", chunk_bytes = 0 : i64} : (!s) -> !s
    return %a, %b : !s, !s
  }
}

// -----

// RUN: choose_algorithm(topology({"links": {"host": {"latency": 1e-3, "bandwidth": 1e8}, "core": {"latency": 1e-6, "bandwidth": 1e10}}}))
//
// Where links are unlike, each rank of a host reduces its part over the hosts.

// -----

// Rows that the ranks of a host divide are scattered as they are.
!x = !torch.vtensor<[8,1000],f32>
module attributes {dist.mesh = #dist.mesh<["host", "core"], [2, 4], ["cpu"]>} {
  func.func @main(%x: !x) -> !x {
    // CHECK: [[P:%.+]] = "dist.reduce_scatter"(%arg0) {axes = ["core"], dim = 0 : i64, reduce_type = "max"}
    // CHECK-NEXT: [[R:%.+]] = "dist.all_reduce"([[P]]) {algorithm = "auto", axes = ["host"], {{.*}}reduce_type = "max"} : (!torch.vtensor<[2,1000],f32>)
    // CHECK-NEXT: [[W:%.+]] = "dist.all_gather"([[R]]) {axes = ["core"], dim = 0 : i64}
    // CHECK-NEXT: return [[W]]
    %a = "dist.all_reduce"(%x) {axes = ["host", "core"], reduce_type = "max", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    return %a : !x
  }
}

// -----

// Others are flattened and padded, and the padding is cut off.
!x = !torch.vtensor<[7,1001],f32>
module attributes {dist.mesh = #dist.mesh<["host", "core"], [2, 4], ["cpu"]>} {
  func.func @main(%x: !x) -> !x {
    // CHECK: torch.aten.view %arg0, {{.*}} -> !torch.vtensor<[7007],f32>
    // CHECK: torch.aten.constant_pad_nd {{.*}} -> !torch.vtensor<[7008],f32>
    // CHECK: "dist.reduce_scatter"({{.*}} -> !torch.vtensor<[1752],f32>
    // CHECK: "dist.all_reduce"
    // CHECK: "dist.all_gather"({{.*}} -> !torch.vtensor<[7008],f32>
    // CHECK: torch.aten.slice.Tensor {{.*}} -> !torch.vtensor<[7007],f32>
    // CHECK: torch.aten.view {{.*}} -> !torch.vtensor<[7,1001],f32>
    %a = "dist.all_reduce"(%x) {axes = ["host", "core"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!x) -> !x
    return %a : !x
  }
}
