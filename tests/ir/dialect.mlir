// RUN: roundtrip()
//
// Every op of the dist dialect. What its verifiers refuse is in tests/unit/test_ir_verifier.py.

// -----

// All ops, as text and as bytecode.
#mesh = #dist.mesh<["dp", "tp"], [2, 4], ["cpu"]>
!full = !torch.vtensor<[8,16],f32>
module attributes {dist.mesh = #mesh} {
  func.func @main(%x: !full {samite.name = "x", dist.layout = "[8:dp, 16]"}) -> (!full {dist.layout = "[8, 16]", samite.alias = 0}) {
    // CHECK: module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [2, 4], ["cpu"]>}
    // CHECK: %arg0: !torch.vtensor<[8,16],f32> {dist.layout = "[8:dp, 16]", samite.name = "x"}
    // CHECK-NEXT: [[C:%.+]] = "dist.constrain"(%arg0) {layout = "[8:dp, 16]"}
    %constrained = "dist.constrain"(%x) {layout = "[8:dp, 16]"} : (!full) -> !full
    // CHECK-NEXT: "dist.reshard"([[C]]) {dst = "[8, 16:tp] sum(dp)", src = "[8:dp, 16]"}
    %resharded = "dist.reshard"(%constrained) {src = "[8:dp, 16]", dst = "[8, 16:tp] sum(dp)"} : (!full) -> !full
    // CHECK-NEXT: "dist.all_reduce"({{.*}}) {algorithm = "ring", axes = ["dp", "tp"], chunk_bytes = 4096 : i64, reduce_type = "max"}
    %reduced = "dist.all_reduce"(%resharded) {axes = ["dp", "tp"], reduce_type = "max", algorithm = "ring", chunk_bytes = 4096 : i64} : (!full) -> !full
    // CHECK-NEXT: "dist.all_gather"({{.*}}) {axes = ["tp"], dim = 1 : i64} : (!torch.vtensor<[8,16],f32>) -> !torch.vtensor<[8,64],f32>
    %gathered = "dist.all_gather"(%reduced) {axes = ["tp"], dim = 1 : i64} : (!full) -> !torch.vtensor<[8,64],f32>
    // CHECK-NEXT: "dist.reduce_scatter"({{.*}}) {axes = ["dp", "tp"], dim = 0 : i64, reduce_type = "sum"}
    %scattered = "dist.reduce_scatter"(%gathered) {axes = ["dp", "tp"], dim = 0 : i64, reduce_type = "sum"} : (!torch.vtensor<[8,64],f32>) -> !torch.vtensor<[1,64],f32>
    // CHECK-NEXT: "dist.all_to_all"({{.*}}) {axes = ["tp"], concat_dim = 0 : i64, split_dim = 1 : i64}
    %exchanged = "dist.all_to_all"(%scattered) {axes = ["tp"], split_dim = 1 : i64, concat_dim = 0 : i64} : (!torch.vtensor<[1,64],f32>) -> !torch.vtensor<[4,16],f32>
    // CHECK-NEXT: "dist.permute"({{.*}}) {axes = ["dp"], pairs = {{\[\[}}0, 1], [1, 0]]}
    %permuted = "dist.permute"(%exchanged) {axes = ["dp"], pairs = [[0, 1], [1, 0]]} : (!torch.vtensor<[4,16],f32>) -> !torch.vtensor<[4,16],f32>
    // CHECK-NEXT: "dist.shard"({{.*}}) {axes = ["dp"], dim = 0 : i64}
    %sharded = "dist.shard"(%permuted) {axes = ["dp"], dim = 0 : i64} : (!torch.vtensor<[4,16],f32>) -> !torch.vtensor<[2,16],f32>
    // CHECK-NEXT: "dist.axis_index"() {axes = ["dp", "tp"]} : () -> !torch.vtensor<[],si64>
    %index = "dist.axis_index"() {axes = ["dp", "tp"]} : () -> !torch.vtensor<[],si64>
    // CHECK-NEXT: "dist.valid_length"() {axes = ["tp", "dp"], size = 13 : i64} : () -> !torch.vtensor<[],si64>
    %length = "dist.valid_length"() {axes = ["tp", "dp"], size = 13 : i64} : () -> !torch.vtensor<[],si64>
    // CHECK-NEXT: [[S:%.+]] = "dist.start"(%arg0) {algorithm = "auto", axes = ["tp"], barrier_id = 0 : i64, chunk_bytes = 0 : i64, collective = "all_to_all", dims = [1, 0], pairs = [], reduce_type = "", token = 1 : i64, wait_on = []}
    %started = "dist.start"(%x) {collective = "all_to_all", axes = ["tp"], dims = [1, 0], pairs = [], reduce_type = "", token = 1 : i64, wait_on = [], barrier_id = 0 : i64, algorithm = "auto", chunk_bytes = 0 : i64} : (!full) -> !torch.vtensor<[32,4],f32>
    // CHECK-NEXT: "dist.wait"([[S]]) : (!torch.vtensor<[32,4],f32>) -> !torch.vtensor<[32,4],f32>
    %arrived = "dist.wait"(%started) : (!torch.vtensor<[32,4],f32>) -> !torch.vtensor<[32,4],f32>
    return %x : !full
  }
}

// -----

// A value crosses from one kind of device to another.
!x = !torch.vtensor<[8,16],f32>
module attributes {dist.mesh = #dist.mesh<["pp"], [2], ["gpu_triton", "cpu"]>} {
  func.func @main(%x: !x) -> !x {
    // CHECK: "dist.transfer"(%arg0) {source = "gpu_triton", target = "cpu"}
    %y = "dist.transfer"(%x) {source = "gpu_triton", target = "cpu"} : (!x) -> !x
    return %y : !x
  }
}
