"""Optimizer updates that are one op: pointwise in the parameter and its state."""

from __future__ import annotations

from samite.rules.language import rule

rule("samite::adam", "*a, *a, *a, *a, ., . -> *a, *a, *a")
