// RUN: partition()
//
// Local types; reshards are collectives; one module serves all ranks.

// -----

// Types are what one rank holds, literals are the shard's, layouts of ops are gone and those of arguments stay.
!x = !torch.vtensor<[8,6],f32>
!y = !torch.vtensor<[48],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  // CHECK: %arg0: !torch.vtensor<[4,6],f32> {dist.layout = "[8:dp, 6]", samite.name = "x"}
  // CHECK-SAME: -> (!torch.vtensor<[24],f32> {dist.layout = "[48:dp]"})
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[8:dp, 6]"}) -> (!y {dist.layout = "[48:dp]"}) {
    // CHECK-NOT: dist.layouts
    // CHECK: torch.constant.int 24
    // CHECK: {{torch.aten.(view|reshape)}} %arg0, {{.*}} -> !torch.vtensor<[24],f32>
    %size = torch.constant.int 48
    %shape = torch.prim.ListConstruct %size : (!torch.int) -> !torch.list<int>
    %y = torch.aten.view %x, %shape {dist.layouts = ["[48:dp]"]} : !x, !torch.list<int> -> !y
    return %y : !y
  }
}

// -----

// From owed to whole: an all_reduce. Nothing else is in it.
!x = !torch.vtensor<[8,6],f32>
module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [2, 2], ["cpu"]>} {
  func.func @main(%x: !x {dist.layout = "[8, 6] sum(tp)"}) -> (!x {dist.layout = "[8, 6]"}) {
    // CHECK: [[R:%.+]] = "dist.all_reduce"(%arg0) {algorithm = "auto", axes = ["tp"], chunk_bytes = 0 : i64, reduce_type = "sum"}
    // CHECK-NEXT: return [[R]]
    %y = "dist.reshard"(%x) {src = "[8, 6] sum(tp)", dst = "[8, 6]", dist.layouts = ["[8, 6]"]} : (!x) -> !x
    return %y : !x
  }
}

// -----

// From owed to split: a reduce_scatter. The unlike parts of an uneven dim are padded before.
!x = !torch.vtensor<[7,6],f32>
module attributes {dist.mesh = #dist.mesh<["tp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {dist.layout = "[7, 6] sum(tp)"}) -> (!x {dist.layout = "[7:tp, 6]"}) {
    // CHECK: [[P:%.+]] = torch.aten.constant_pad_nd %arg0, {{.*}} -> !torch.vtensor<[8,6],f32>
    // CHECK-NEXT: [[R:%.+]] = "dist.reduce_scatter"([[P]]) {axes = ["tp"], dim = 0 : i64, reduce_type = "sum"} {{.*}} -> !torch.vtensor<[4,6],f32>
    // CHECK-NEXT: return [[R]]
    %y = "dist.reshard"(%x) {src = "[7, 6] sum(tp)", dst = "[7:tp, 6]", dist.layouts = ["[7:tp, 6]"]} : (!x) -> !x
    return %y : !x
  }
}

// -----

// From split to whole: an all_gather. The padding is cut off after.
!x = !torch.vtensor<[7,6],f32>
module attributes {dist.mesh = #dist.mesh<["tp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {dist.layout = "[7:tp, 6]"}) -> (!x {dist.layout = "[7, 6]"}) {
    // CHECK: [[G:%.+]] = "dist.all_gather"(%arg0) {axes = ["tp"], dim = 0 : i64} {{.*}} -> !torch.vtensor<[8,6],f32>
    // CHECK: [[S:%.+]] = torch.aten.slice.Tensor [[G]], {{.*}} -> !torch.vtensor<[7,6],f32>
    // CHECK-NEXT: return [[S]]
    %y = "dist.reshard"(%x) {src = "[7:tp, 6]", dst = "[7, 6]", dist.layouts = ["[7, 6]"]} : (!x) -> !x
    return %y : !x
  }
}

// -----

// From one dim to another: an all_to_all. From whole to split: a local shard.
!x = !torch.vtensor<[8,6],f32>
module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [2, 2], ["cpu"]>} {
  func.func @main(%x: !x {dist.layout = "[8:tp, 6]"}) -> (!x {dist.layout = "[8:dp, 6:tp]"}) {
    // CHECK: [[A:%.+]] = "dist.all_to_all"(%arg0) {axes = ["tp"], concat_dim = 0 : i64, split_dim = 1 : i64}
    // CHECK-NEXT: [[S:%.+]] = "dist.shard"([[A]]) {axes = ["dp"], dim = 0 : i64} {{.*}} -> !torch.vtensor<[4,3],f32>
    // CHECK-NEXT: return [[S]]
    %y = "dist.reshard"(%x) {src = "[8:tp, 6]", dst = "[8, 6:tp]", dist.layouts = ["[8, 6:tp]"]} : (!x) -> !x
    %z = "dist.reshard"(%y) {src = "[8, 6:tp]", dst = "[8:dp, 6:tp]", dist.layouts = ["[8:dp, 6:tp]"]} : (!x) -> !x
    return %z : !x
  }
}

// -----

// A sum over a dim with padding: the padding is made zero, by a mask that depends on the rank alone.
!x = !torch.vtensor<[7,6],f32>
!y = !torch.vtensor<[6],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {dist.layout = "[7:dp, 6]"}) -> (!y {dist.layout = "[6]"}) {
    // CHECK: "dist.valid_length"() {axes = ["dp"], size = 7 : i64}
    // CHECK: [[M:%.+]] = torch.aten.where.self {{.*}}, %arg0,
    // CHECK: [[S:%.+]] = torch.aten.sum.dim_IntList [[M]]
    // CHECK-NEXT: [[R:%.+]] = "dist.all_reduce"([[S]])
    // CHECK-NEXT: return [[R]]
    %zero = torch.constant.int 0
    %dims = torch.prim.ListConstruct %zero : (!torch.int) -> !torch.list<int>
    %false = torch.constant.bool false
    %none = torch.constant.none
    %s = torch.aten.sum.dim_IntList %x, %dims, %false, %none {dist.layouts = ["[6] sum(dp)"]} : !x, !torch.list<int>, !torch.bool, !torch.none -> !y
    %r = "dist.reshard"(%s) {src = "[6] sum(dp)", dst = "[6]", dist.layouts = ["[6]"]} : (!y) -> !y
    return %r : !y
  }
}

// -----

// Layouts that an op's rule does not connect are refused.
// ERROR: relu: its rule takes no operands [8:dp] to [8]
!x = !torch.vtensor<[8],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {dist.layout = "[8:dp]"}) -> (!x {dist.layout = "[8]"}) {
    %y = torch.aten.relu %x {dist.layouts = ["[8]"]} : !x -> !x
    return %y : !x
  }
}

// -----

// A constraint has done its work once it is placed.
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !torch.vtensor<[8,4],f32> {samite.name = "x", dist.layout = "[8:dp, 4]"}) -> !torch.vtensor<[8,4],f32> {
    // CHECK-NOT: constrain
    // CHECK: return %arg0 : !torch.vtensor<[4,4],f32>
    %c = "dist.constrain"(%x) {layout = "[8:dp, 4]", dist.layouts = ["[8:dp, 4]"]} : (!torch.vtensor<[8,4],f32>) -> !torch.vtensor<[8,4],f32>
    return %c : !torch.vtensor<[8,4],f32>
  }
}
