"""Optimizer updates that are one op: pointwise in the parameter and its state. `N` are the numbers of a group."""

from __future__ import annotations

from samite.rules.language import rule

rule("samite::adam", "*a, *a, *a, *a, ., N -> *a, *a, *a")
rule("samite::amsgrad", "*a, *a, *a, *a, *a, ., N -> *a, *a, *a, *a")
rule("samite::sgd", "*a, *a, N -> *a")
rule("samite::sgd_momentum", "*a, *a, ?(*a), N -> *a, *a")
