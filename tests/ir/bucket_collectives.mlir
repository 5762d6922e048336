// RUN: bucket_collectives(bucket_bytes=4096)
//
// All_reduces that can wait for one another travel as one.

// -----

// Two that nobody needs at once are flattened, joined, reduced, and cut apart again. A vector needs no view.
!m = !torch.vtensor<[8,4],f32>
!v = !torch.vtensor<[8],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%m: !m, %v: !v) -> (!m, !v) {
    // CHECK: [[F:%.+]] = torch.aten.view %arg0, {{.*}} -> !torch.vtensor<[32],f32>
    // CHECK: [[L:%.+]] = torch.prim.ListConstruct [[F]], %arg1
    // CHECK: [[J:%.+]] = torch.aten.cat [[L]], {{.*}} -> !torch.vtensor<[40],f32>
    // CHECK-NEXT: [[R:%.+]] = "dist.all_reduce"([[J]]) {{.*}} -> !torch.vtensor<[40],f32>
    // CHECK: [[S:%.+]] = torch.aten.split_with_sizes [[R]]
    // CHECK-NEXT: [[P:%.+]]:2 = torch.prim.ListUnpack [[S]]
    // CHECK: [[M:%.+]] = torch.aten.view [[P]]#0, {{.*}} -> !torch.vtensor<[8,4],f32>
    // CHECK-NEXT: return [[M]], [[P]]#1
    %a = "dist.all_reduce"(%m) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!m) -> !m
    %b = "dist.all_reduce"(%v) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!v) -> !v
    return %a, %b : !m, !v
  }
}

// -----

// What another depends on does not wait for it: here there is nothing to join.
!m = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !m) -> !m {
    // CHECK: [[A:%.+]] = "dist.all_reduce"(%arg0)
    // CHECK-NEXT: [[B:%.+]] = torch.aten.relu [[A]]
    // CHECK-NEXT: [[C:%.+]] = "dist.all_reduce"([[B]])
    // CHECK-NEXT: return [[C]]
    %a = "dist.all_reduce"(%x) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!m) -> !m
    %b = torch.aten.relu %a : !m -> !m
    %c = "dist.all_reduce"(%b) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!m) -> !m
    return %c : !m
  }
}

// -----

// An activation goes at once, a gradient waits: the bucket that the program waits for goes first, and alone.
!m = !torch.vtensor<[8,4],f32>
!v = !torch.vtensor<[4],f32>
module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [2, 2], ["cpu"]>} {
  func.func @main(%g: !m, %x: !v) -> (!m, !v, !v) {
    // CHECK: [[X:%.+]] = "dist.all_reduce"(%arg1) {{.*}}axes = ["tp"]
    // CHECK-NEXT: [[Y:%.+]] = torch.aten.relu [[X]]
    // CHECK: torch.aten.cat
    // CHECK-NEXT: "dist.all_reduce"({{.*}}axes = ["dp"]{{.*}} -> !torch.vtensor<[36],f32>
    %first = "dist.all_reduce"(%g) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!m) -> !m
    %now = "dist.all_reduce"(%x) {axes = ["tp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!v) -> !v
    %y = torch.aten.relu %now : !v -> !v
    %last = "dist.all_reduce"(%y) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!v) -> !v
    return %first, %last, %y : !m, !v, !v
  }
}

// -----

// Axes, kind, algorithm and dtype keep reductions apart.
!v = !torch.vtensor<[8],f32>
!d = !torch.vtensor<[8],f64>
module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [2, 2], ["cpu"]>} {
  func.func @main(%v: !v, %d: !d) -> (!v, !v, !v, !v, !d) {
    // CHECK-COUNT-5: dist.all_reduce
    // CHECK-NOT: dist.all_reduce
    // CHECK-NOT: torch.aten.cat
    %a = "dist.all_reduce"(%v) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!v) -> !v
    %b = "dist.all_reduce"(%v) {axes = ["tp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!v) -> !v
    %c = "dist.all_reduce"(%v) {axes = ["dp"], reduce_type = "max", algorithm = "auto", chunk_bytes = 0 : i64} : (!v) -> !v
    %e = "dist.all_reduce"(%v) {axes = ["dp"], reduce_type = "sum", algorithm = "ring", chunk_bytes = 0 : i64} : (!v) -> !v
    %f = "dist.all_reduce"(%d) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!d) -> !d
    return %a, %b, %c, %e, %f : !v, !v, !v, !v, !d
  }
}

// -----

// At 4096 bytes a bucket goes: two of 2 KB fill one, the third goes in the next.
!v = !torch.vtensor<[512],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%a: !v, %b: !v, %c: !v) -> (!v, !v, !v) {
    // CHECK: torch.prim.ListConstruct %arg0, %arg1
    // CHECK: "dist.all_reduce"({{.*}} -> !torch.vtensor<[1024],f32>
    // CHECK: "dist.all_reduce"(%arg2) {{.*}} -> !torch.vtensor<[512],f32>
    %x = "dist.all_reduce"(%a) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!v) -> !v
    %y = "dist.all_reduce"(%b) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!v) -> !v
    %z = "dist.all_reduce"(%c) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!v) -> !v
    return %x, %y, %z : !v, !v, !v
  }
}

// -----

// RUN: bucket_collectives()
//
// 25 MB is the default: three of 10 MB are one bucket, and a fourth begins another.
!v = !torch.vtensor<[2621440],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%a: !v, %b: !v, %c: !v, %d: !v) -> (!v, !v, !v, !v) {
    // CHECK: torch.prim.ListConstruct %arg0, %arg1, %arg2 :
    // CHECK: "dist.all_reduce"({{.*}} -> !torch.vtensor<[7864320],f32>
    // CHECK: "dist.all_reduce"(%arg3)
    %w = "dist.all_reduce"(%a) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!v) -> !v
    %x = "dist.all_reduce"(%b) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!v) -> !v
    %y = "dist.all_reduce"(%c) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!v) -> !v
    %z = "dist.all_reduce"(%d) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0 : i64} : (!v) -> !v
    return %w, %x, %y, %z : !v, !v, !v, !v
  }
}
