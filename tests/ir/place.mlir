// RUN: place()
//
// Every value has a layout, and conflicts are explicit reshards.

// -----

// A weight split by columns asks its bias and the next weight to be split alike: one reduction, after both.
!x = !torch.vtensor<[8,4],f32>
!w1 = !torch.vtensor<[4,16],f32>
!b = !torch.vtensor<[16],f32>
!h = !torch.vtensor<[8,16],f32>
!w2 = !torch.vtensor<[16,4],f32>
module attributes {dist.mesh = #dist.mesh<["tp"], [2], ["cpu"]>} {
  // CHECK: {dist.layout = "[8, 4]", samite.name = "x"}
  // CHECK-SAME: {dist.layout = "[4, 16:tp]", samite.name = "w1"}
  // CHECK-SAME: {dist.layout = "[16:tp]", samite.name = "b"}
  // CHECK-SAME: {dist.layout = "[16:tp, 4]", samite.name = "w2"}
  // CHECK-SAME: -> (!torch.vtensor<[8,4],f32> {dist.layout = "[8, 4]"})
  func.func @main(%x: !x {samite.name = "x"}, %w1: !w1 {samite.name = "w1", dist.layout = "[4, 16:tp]"},
                  %b: !b {samite.name = "b"}, %w2: !w2 {samite.name = "w2"}) -> !x {
    %one = torch.constant.int 1
    // CHECK: [[H:%.+]] = torch.aten.addmm {{.*}} {dist.layouts = ["[8, 16:tp]"]}
    %h = torch.aten.addmm %b, %x, %w1, %one, %one : !b, !x, !w1, !torch.int, !torch.int -> !h
    // CHECK-NEXT: [[R:%.+]] = torch.aten.relu [[H]] {dist.layouts = ["[8, 16:tp]"]}
    %r = torch.aten.relu %h : !h -> !h
    // CHECK-NEXT: [[Y:%.+]] = torch.aten.mm [[R]], %arg3 {dist.layouts = ["[8, 4] sum(tp)"]}
    %y = torch.aten.mm %r, %w2 : !h, !w2 -> !x
    // CHECK-NEXT: [[S:%.+]] = "dist.reshard"([[Y]]) {dist.layouts = ["[8, 4]"], dst = "[8, 4]", src = "[8, 4] sum(tp)"}
    // CHECK-NEXT: return [[S]]
    return %y : !x
  }
}

// -----

// A partial value that several ops use is settled once, where it is made.
!x = !torch.vtensor<[8,4],f32>
!w = !torch.vtensor<[4,4],f32>
module attributes {dist.mesh = #dist.mesh<["tp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[8, 4:tp]"}, %w: !w {samite.name = "w"}) -> (!x, !x) {
    // CHECK: [[Y:%.+]] = torch.aten.mm {{.*}} {dist.layouts = ["[8, 4] sum(tp)"]}
    // CHECK-NEXT: [[S:%.+]] = "dist.reshard"([[Y]])
    // CHECK-NOT: dist.reshard
    // CHECK: torch.aten.exp [[S]]
    // CHECK: torch.aten.relu [[S]]
    %y = torch.aten.mm %x, %w : !x, !w -> !x
    %a = torch.aten.exp %y : !x -> !x
    %b = torch.aten.relu %y : !x -> !x
    return %a, %b : !x, !x
  }
}

// -----

// A partial value that is needed whole later on is settled where it arises, not after the scaling on its way.
!x = !torch.vtensor<[8,4],f32>
!s = !torch.vtensor<[],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[8:dp, 4]"}) -> !s {
    // CHECK: [[S:%.+]] = torch.aten.sum %arg0, {{.*}} {dist.layouts = ["[] sum(dp)"]}
    // CHECK-NEXT: [[R:%.+]] = "dist.reshard"([[S]])
    // CHECK: [[D:%.+]] = torch.aten.div.Scalar [[R]], {{.*}} {dist.layouts = ["[]"]}
    // CHECK-NEXT: torch.aten.exp [[D]]
    %none = torch.constant.none
    %two = torch.constant.int 2
    %sum = torch.aten.sum %x, %none : !x, !torch.none -> !s
    %half = torch.aten.div.Scalar %sum, %two : !s, !torch.int -> !s
    %e = torch.aten.exp %half : !s -> !s
    return %e : !s
  }
}

// -----

// Gradients and momenta lie as the parameter that owns them, and so does what replaces it.
!w = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  // CHECK: {dist.layout = "[8:dp, 4]", samite.name = "w"}
  // CHECK-SAME: {dist.layout = "[8:dp, 4]", samite.name = "w.momentum", samite.owner = "w"}
  // CHECK-SAME: {dist.layout = "[8:dp, 4]", samite.alias = 0 : i64}
  func.func @main(%w: !w {samite.name = "w", dist.layout = "[8:dp, 4]"}, %m: !w {samite.name = "w.momentum", samite.owner = "w"})
      -> (!w {samite.alias = 0}) {
    // CHECK-NOT: reshard
    // CHECK: torch.aten.sub.Tensor %arg0, %arg1, {{.*}} {dist.layouts = ["[8:dp, 4]"]}
    %one = torch.constant.int 1
    %new = torch.aten.sub.Tensor %w, %m, %one : !w, !w, !torch.int -> !w
    return %new : !w
  }
}

// -----

// A returned value is settled; one that replaces an argument is brought to the argument's layout.
!w = !torch.vtensor<[4,4],f32>
!x = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%w: !w {samite.name = "w", dist.layout = "[4:dp, 4]"}, %x: !x {samite.name = "x", dist.layout = "[8:dp, 4]"})
      -> (!w {samite.alias = 0}) {
    // CHECK: [[G:%.+]] = torch.aten.mm {{.*}} {dist.layouts = ["[4, 4] sum(dp)"]}
    // CHECK-NEXT: [[S:%.+]] = "dist.reshard"([[G]]) {dist.layouts = ["[4:dp, 4]"], dst = "[4:dp, 4]", src = "[4, 4] sum(dp)"}
    // CHECK-NEXT: return [[S]]
    %t = torch.aten.t %x : !x -> !torch.vtensor<[4,8],f32>
    %g = torch.aten.mm %t, %x : !torch.vtensor<[4,8],f32>, !x -> !w
    return %g : !w
  }
}

// -----

// What has no rule is refused, with the user's line and the way out.
// ERROR: samite.rules.rule("aten::linalg_det"
!w = !torch.vtensor<[4,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%w: !w {samite.name = "w"}) -> !torch.vtensor<[],f32> {
    %d = torch.operator "torch.aten.linalg_det"(%w) : (!w) -> !torch.vtensor<[],f32> loc("train.py":3:0)
    return %d : !torch.vtensor<[],f32>
  }
}

// -----

// A constraint in the middle of a function is met by a reshard, and its users see the layout that it asks for.
!x = !torch.vtensor<[8,4],f32>
module attributes {dist.mesh = #dist.mesh<["dp"], [2], ["cpu"]>} {
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[8:dp, 4]"}) -> !x {
    // CHECK: [[R:%.+]] = "dist.reshard"(%arg0) {dist.layouts = ["[8, 4:dp]"], dst = "[8, 4:dp]", src = "[8:dp, 4]"}
    // CHECK-NEXT: [[C:%.+]] = "dist.constrain"([[R]]) {dist.layouts = ["[8, 4:dp]"], layout = "[8, 4:dp]"}
    // CHECK-NEXT: torch.aten.relu [[C]] {dist.layouts = ["[8, 4:dp]"]}
    %c = "dist.constrain"(%x) {layout = "[8, 4:dp]"} : (!x) -> !x
    %y = torch.aten.relu %c : !x -> !x
    return %y : !x
  }
}
