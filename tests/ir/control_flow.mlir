// RUN: roundtrip(), normalise()
//
// Ops with regions: what is done to a function is done to their regions, and what goes in and out of them agrees.

// -----

// Regions are functions: copies go, equal ops are one, dead ops are none.
!x = !torch.vtensor<[4],f32>
!p = !torch.vtensor<[],i1>
module {
  func.func @main(%p: !p, %x: !x) -> !x {
    // CHECK: "dist.cond"(%arg0, {{%.+}}) ({
    // CHECK-NEXT: ^bb0([[A:%.+]]: !torch.vtensor<[4],f32>):
    // CHECK-NEXT: [[Y:%.+]] = torch.aten.relu [[A]]
    // CHECK-NEXT: [[T:%.+]] = torch.prim.TupleConstruct [[Y]]
    // CHECK-NEXT: "dist.yield"([[T]])
    // CHECK: }, {
    // CHECK-NEXT: ^bb0([[A:%.+]]: !torch.vtensor<[4],f32>):
    // CHECK-NEXT: [[T:%.+]] = torch.prim.TupleConstruct [[A]]
    %in = torch.prim.TupleConstruct %x : !x -> !torch.tuple<vtensor<[4],f32>>
    %out = "dist.cond"(%p, %in) ({
    ^bb0(%a: !x):
      %dead = torch.aten.exp %a : !x -> !x
      %b = torch.aten.relu %a : !x -> !x
      %c = torch.aten.detach %b : !x -> !x
      %t = torch.prim.TupleConstruct %c : !x -> !torch.tuple<vtensor<[4],f32>>
      "dist.yield"(%t) : (!torch.tuple<vtensor<[4],f32>>) -> ()
    }, {
    ^bb0(%a: !x):
      %t = torch.prim.TupleConstruct %a : !x -> !torch.tuple<vtensor<[4],f32>>
      "dist.yield"(%t) : (!torch.tuple<vtensor<[4],f32>>) -> ()
    }) : (!p, !torch.tuple<vtensor<[4],f32>>) -> !torch.tuple<vtensor<[4],f32>>
    %y = torch.prim.TupleUnpack %out : !torch.tuple<vtensor<[4],f32>> -> !x
    return %y : !x
  }
}

// -----

// RUN: place()

// Branches end in one layout: here the second makes what it gives as the first one's is split.
!x = !torch.vtensor<[8,4],f32>
!p = !torch.vtensor<[],i1>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  // CHECK: func.func @main({{.*}} -> (!torch.vtensor<[8,4],f32> {dist.layout = "[8:dp, 4]"})
  func.func @main(%p: !p {samite.name = "p"}, %x: !x {samite.name = "x", dist.layout = "[8:dp, 4]"}) -> !x {
    %in = torch.prim.TupleConstruct %x : !x -> !torch.tuple<vtensor<[8,4],f32>>
    %out = "dist.cond"(%p, %in) ({
    ^bb0(%a: !x):
      // CHECK: torch.aten.relu {{%.+}} {dist.layouts = ["[8:dp, 4]"]}
      %b = torch.aten.relu %a : !x -> !x
      %t = torch.prim.TupleConstruct %b : !x -> !torch.tuple<vtensor<[8,4],f32>>
      "dist.yield"(%t) : (!torch.tuple<vtensor<[8,4],f32>>) -> ()
    }, {
    ^bb0(%a: !x):
      // CHECK: [[F:%.+]] = torch.aten.full {{.*}} {dist.layouts = ["[8:dp, 4]"]}
      // CHECK-NEXT: torch.prim.TupleConstruct [[F]]
      %n0 = torch.constant.int 8
      %n1 = torch.constant.int 4
      %none = torch.constant.none
      %shape = torch.prim.ListConstruct %n0, %n1 : (!torch.int, !torch.int) -> !torch.list<int>
      %f = torch.aten.full %shape, %n1, %none, %none, %none, %none : !torch.list<int>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !x
      %t = torch.prim.TupleConstruct %f : !x -> !torch.tuple<vtensor<[8,4],f32>>
      "dist.yield"(%t) : (!torch.tuple<vtensor<[8,4],f32>>) -> ()
    // CHECK: dist.layouts = ["[8:dp, 4]"], dist.region_layouts = {{\[\[\["\[8:dp, 4\]"\], \["\[8:dp, 4\]"\]\], \[\["\[8:dp, 4\]"\], \["\[8:dp, 4\]"\]\]\]}}
    }) : (!p, !torch.tuple<vtensor<[8,4],f32>>) -> !torch.tuple<vtensor<[8,4],f32>>
    %y = torch.prim.TupleUnpack %out : !torch.tuple<vtensor<[8,4],f32>> -> !x
    return %y : !x
  }
}

// -----

// What a loop adds up stays owed while it runs, and is settled once behind it.
!s = !torch.vtensor<[],f32>
!v = !torch.vtensor<[4],f32>
!x = !torch.vtensor<[3,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%c: !s {samite.name = "c"}, %x: !x {samite.name = "x", dist.layout = "[3, 4:dp]"}) -> !s {
    // CHECK: [[C:%.+]] = "dist.reshard"(%arg0) {dist.layouts = ["[] sum(dp)"], dst = "[] sum(dp)", src = "[]"}
    // CHECK-NEXT: [[IN:%.+]] = torch.prim.TupleConstruct [[C]], %arg1
    // CHECK-NEXT: [[OUT:%.+]] = "dist.scan"([[IN]]) ({
    // CHECK-NOT: dist.reshard
    // CHECK: torch.aten.add.Tensor {{.*}} {dist.layouts = ["[] sum(dp)"]}
    // CHECK: }) {carried = 1 : i64
    // CHECK-NEXT: [[Y:%.+]] = torch.prim.TupleUnpack [[OUT]]
    // CHECK-NEXT: "dist.reshard"([[Y]]) {dist.layouts = ["[]"], dst = "[]", src = "[] sum(dp)"}
    %in = torch.prim.TupleConstruct %c, %x : !s, !x -> !torch.tuple<vtensor<[],f32>, vtensor<[3,4],f32>>
    %out = "dist.scan"(%in) ({
    ^bb0(%a: !s, %b: !v):
      %one = torch.constant.int 1
      %none = torch.constant.none
      %t = torch.aten.sum %b, %none : !v, !torch.none -> !s
      %n = torch.aten.add.Tensor %a, %t, %one : !s, !s, !torch.int -> !s
      %r = torch.prim.TupleConstruct %n : !s -> !torch.tuple<vtensor<[],f32>>
      "dist.yield"(%r) : (!torch.tuple<vtensor<[],f32>>) -> ()
    }) {carried = 1 : i64, sliced = 1 : i64} : (!torch.tuple<vtensor<[],f32>, vtensor<[3,4],f32>>) -> !torch.tuple<vtensor<[],f32>>
    %y = torch.prim.TupleUnpack %out : !torch.tuple<vtensor<[],f32>> -> !s
    return %y : !s
  }
}

// -----

// RUN: partition(), fuse_collectives(), bucket_collectives(), verify()

// Regions are local too; a body's collectives stand in it.
!x = !torch.vtensor<[8,4],f32>
!p = !torch.vtensor<[],i1>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {dist.layout = "[8:dp, 4]"}) -> (!x {dist.layout = "[8:dp, 4]"}) {
    // CHECK: "dist.while"({{%.+}}) ({
    // CHECK-NEXT: ^bb0([[A:%.+]]: !torch.vtensor<[4,4],f32>):
    // CHECK: [[S:%.+]] = torch.aten.sum [[A]]
    // CHECK-NEXT: [[R:%.+]] = "dist.all_reduce"([[S]]) {algorithm = "auto", axes = ["dp"], chunk_bytes = 0 : i64, reduce_type = "sum"}
    // CHECK: torch.aten.gt.Scalar [[R]]
    // CHECK: }, {
    // CHECK-NEXT: ^bb0([[B:%.+]]: !torch.vtensor<[4,4],f32>):
    // CHECK-NEXT: torch.aten.relu [[B]]
    %in = torch.prim.TupleConstruct %x : !x -> !torch.tuple<vtensor<[8,4],f32>>
    %out = "dist.while"(%in) ({
    ^bb0(%a: !x):
      %none = torch.constant.none
      %zero = torch.constant.int 0
      %s = torch.aten.sum %a, %none {dist.layouts = ["[] sum(dp)"]} : !x, !torch.none -> !torch.vtensor<[],f32>
      %w = "dist.reshard"(%s) {src = "[] sum(dp)", dst = "[]", dist.layouts = ["[]"]} : (!torch.vtensor<[],f32>) -> !torch.vtensor<[],f32>
      %g = torch.aten.gt.Scalar %w, %zero {dist.layouts = ["[]"]} : !torch.vtensor<[],f32>, !torch.int -> !p
      %t = torch.prim.TupleConstruct %g : !p -> !torch.tuple<vtensor<[],i1>>
      "dist.yield"(%t) : (!torch.tuple<vtensor<[],i1>>) -> ()
    }, {
    ^bb0(%a: !x):
      %b = torch.aten.relu %a {dist.layouts = ["[8:dp, 4]"]} : !x -> !x
      %t = torch.prim.TupleConstruct %b : !x -> !torch.tuple<vtensor<[8,4],f32>>
      "dist.yield"(%t) : (!torch.tuple<vtensor<[8,4],f32>>) -> ()
    }) {carried = 1 : i64, dist.layouts = ["[8:dp, 4]"], dist.region_layouts = [[["[8:dp, 4]"], ["[]"]], [["[8:dp, 4]"], ["[8:dp, 4]"]]]} : (!torch.tuple<vtensor<[8,4],f32>>) -> !torch.tuple<vtensor<[8,4],f32>>
    %y = torch.prim.TupleUnpack %out : !torch.tuple<vtensor<[8,4],f32>> -> !x
    return %y : !x
  }
}

// -----

// RUN: normalise()

// A branch gives what the op does.
// ERROR: otherwise must give (float32[4]), gives (bool[])
!x = !torch.vtensor<[4],f32>
!p = !torch.vtensor<[],i1>
module {
  func.func @main(%p: !p, %x: !x) -> !x {
    %in = torch.prim.TupleConstruct %x, %p : !x, !p -> !torch.tuple<vtensor<[4],f32>, vtensor<[],i1>>
    %out = "dist.cond"(%p, %in) ({
    ^bb0(%a: !x, %b: !p):
      %t = torch.prim.TupleConstruct %a : !x -> !torch.tuple<vtensor<[4],f32>>
      "dist.yield"(%t) : (!torch.tuple<vtensor<[4],f32>>) -> ()
    }, {
    ^bb0(%a: !x, %b: !p):
      %t = torch.prim.TupleConstruct %b : !p -> !torch.tuple<vtensor<[],i1>>
      "dist.yield"(%t) : (!torch.tuple<vtensor<[],i1>>) -> ()
    }) : (!p, !torch.tuple<vtensor<[4],f32>, vtensor<[],i1>>) -> !torch.tuple<vtensor<[4],f32>>
    %y = torch.prim.TupleUnpack %out : !torch.tuple<vtensor<[4],f32>> -> !x
    return %y : !x
  }
}

// -----

// A loop gives what it carries.
// ERROR: results must be what is carried, (float32[4]), have (float32[2])
!x = !torch.vtensor<[4],f32>
module {
  func.func @main(%x: !x) -> !torch.vtensor<[2],f32> {
    %in = torch.prim.TupleConstruct %x : !x -> !torch.tuple<vtensor<[4],f32>>
    %out = "dist.while"(%in) ({
    ^bb0(%a: !x):
      %t = torch.prim.TupleConstruct %a : !x -> !torch.tuple<vtensor<[4],f32>>
      "dist.yield"(%t) : (!torch.tuple<vtensor<[4],f32>>) -> ()
    }, {
    ^bb0(%a: !x):
      %t = torch.prim.TupleConstruct %a : !x -> !torch.tuple<vtensor<[4],f32>>
      "dist.yield"(%t) : (!torch.tuple<vtensor<[4],f32>>) -> ()
    }) {carried = 1 : i64} : (!torch.tuple<vtensor<[4],f32>>) -> !torch.tuple<vtensor<[2],f32>>
    %y = torch.prim.TupleUnpack %out : !torch.tuple<vtensor<[2],f32>> -> !torch.vtensor<[2],f32>
    return %y : !torch.vtensor<[2],f32>
  }
}

// -----

// What is sliced is as long as what is stacked.
// ERROR: sliced inputs and stacked results must have one length
!x = !torch.vtensor<[4],f32>
module {
  func.func @main(%x: !x) -> !torch.vtensor<[3],f32> {
    %in = torch.prim.TupleConstruct %x : !x -> !torch.tuple<vtensor<[4],f32>>
    %out = "dist.scan"(%in) ({
    ^bb0(%a: !torch.vtensor<[],f32>):
      %t = torch.prim.TupleConstruct %a : !torch.vtensor<[],f32> -> !torch.tuple<vtensor<[],f32>>
      "dist.yield"(%t) : (!torch.tuple<vtensor<[],f32>>) -> ()
    }) {carried = 0 : i64, sliced = 1 : i64} : (!torch.tuple<vtensor<[4],f32>>) -> !torch.tuple<vtensor<[3],f32>>
    %y = torch.prim.TupleUnpack %out : !torch.tuple<vtensor<[3],f32>> -> !torch.vtensor<[3],f32>
    return %y : !torch.vtensor<[3],f32>
  }
}
