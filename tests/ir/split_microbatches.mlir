// RUN: split_microbatches(frozenset({"x"})), place(time=frozenset({"mb"}))
//
// The batch is cut along an axis in time, and sums over it are settled where they arise.

// -----

// An input is cut within what a rank holds of it; its gradient's sum over microbatches comes before that over ranks.
!x = !torch.vtensor<[16,4],f32>
!w = !torch.vtensor<[4,4],f32>
!t = !torch.vtensor<[4,16],f32>
module attributes {dist.mesh = #dist.mesh<["mb", "dp"], [2, 2], ["cpu"]>} {
  // CHECK: dist.layout = "[16:dp, 4]"
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[16:dp, 4]"}, %w: !w {samite.name = "w"}) -> (!w {samite.alias = 1}) {
    %zero = torch.constant.int 0
    %one = torch.constant.int 1
    // CHECK: "dist.reshard"(%arg0) {dist.layouts = ["[16:dp.mb, 4]"], dst = "[16:dp.mb, 4]", src = "[16:dp, 4]"}
    // CHECK: [[Y:%.+]] = torch.aten.mm {{.*}} {dist.layouts = ["[16:dp.mb, 4]"]}
    %y = torch.aten.mm %x, %w : !x, !w -> !x
    %t = torch.aten.transpose.int %y, %zero, %one : !x, !torch.int, !torch.int -> !t
    // CHECK: [[G:%.+]] = torch.aten.mm {{.*}} {dist.layouts = ["[4, 4] sum(dp.mb)"]}
    // CHECK-NEXT: [[S:%.+]] = "dist.reshard"([[G]]) {{.*}} dst = "[4, 4] sum(dp)", src = "[4, 4] sum(dp.mb)"}
    // CHECK-NEXT: "dist.reshard"([[S]]) {{.*}} dst = "[4, 4]", src = "[4, 4] sum(dp)"}
    %g = torch.aten.mm %t, %y : !t, !x -> !w
    return %g : !w
  }
}

// -----

// What a rank holds must be a multiple.
!x = !torch.vtensor<[12,4],f32>
module attributes {dist.mesh = #dist.mesh<["mb", "dp"], [4, 2], ["cpu"]>} {
// ERROR: x: 4 microbatches do not divide its 12 rows, of which each of 2 ranks holds its part
  func.func @main(%x: !x {samite.name = "x", dist.layout = "[12:dp, 4]"}) -> !x {
    return %x : !x
  }
}
