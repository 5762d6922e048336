"""Factorisations of matrices, solvers and transforms: batch dims are free, and where columns of a right-hand side do
not meet, they are too.

The dims of a matrix are whole: an element of a factor depends on all of the matrix. Kernels that iterate refuse what is
not finite, and others what is singular, so padded matrices are 0 or 1 for them.
"""

from __future__ import annotations

from collections.abc import Callable

from samite.ir.graph import Op
from samite.rules.language import rule


def unless_left_out(text: str) -> Callable[[Op], str]:
    """`text`, where a flag may leave results out: they are 1-d and empty then."""
    operands, results = text.split(" -> ")

    def spell(op: Op) -> str:
        terms = [
            "E=0" if type.shape == (0,) and len(term.split()) > 1 else term
            for term, type in zip(results.split(", "), op.results, strict=True)
        ]
        return f"{operands} -> {', '.join(terms)}"

    spell.__name__ = "unless_left_out"
    return spell


def solved(text: str) -> Callable[[Op], str]:
    """`text` with {b} for a right-hand side: columns, rows where the matrix is on the right, or one vector."""

    def spell(op: Op) -> str:
        matrix, side = op.operands[0].shape, op.operands[-1].shape
        if op.name == "aten._linalg_solve_ex" and (len(side) == 1 or side == matrix[:-1]):
            return text.format(b="*a N")
        column = "K" if op.name == "aten._linalg_solve_ex" else "k"  # the factors that it gives too have no columns
        return text.format(b=f"*a N {column}" if op.literals.get("left", True) else f"*a {column} N")

    spell.__name__ = "solved"
    return spell


rule("linalg_cholesky_ex", "*a M N -> *a M N, *a")
rule("cholesky_inverse", "*a M N -> *a M N", padding={0: 1.0})
rule("cholesky_solve", "*a N k, *a N M -> *a N k", linear="0")
rule("linalg_inv_ex", "*a M N -> *a M N, *a")
rule("linalg_pinv.atol_rtol_tensor", "*a M N, ?(*a), ?(*a) -> *a N M", padding={0: 0.0})
rule("linalg_matrix_exp", "*a M N -> *a M N", padding={0: 0.0})
rule("linalg_householder_product", "*a M N, *a K -> *a M N")
rule("geqrf", "*a M N -> *a M N, *a K")
rule("ormqr", "*a M N, *a K, *a P Q -> *a P Q", linear="2")

rule("linalg_qr", unless_left_out("*a M N -> *a M K, *a K P"))
rule("_linalg_svd", unless_left_out("*a M N -> *a M K, *a S, *a P N"), padding={0: 0.0})
rule("_linalg_eigh", unless_left_out("*a M N -> *a M, *a M N"), padding={0: 0.0})
rule("linalg_eig", "*a M N -> *a M, *a M N", padding={0: 0.0})
rule("linalg_eigvals", "*a M N -> *a M", padding={0: 0.0})
rule("_linalg_eigvals", "*a M N -> *a M", padding={0: 0.0})

rule("_linalg_det", "*a M N -> *a, *a M N, *a M")
rule("_linalg_slogdet", "*a M N -> *a, *a, *a M N, *a M")
rule("linalg_lu_factor_ex", "*a M N -> *a M N, *a K, *a")
rule("linalg_lu", unless_left_out("*a M N -> *a M P, *a M K, *a K N"))
rule("lu_unpack", unless_left_out("*a M N, *a K -> *a M P, *a M K, *a K N"), padding={1: 1})
rule("linalg_ldl_factor_ex", "*a M N -> *a M N, *a M, *a")

rule("linalg_solve_triangular", solved("*a M N, {b} -> {b}"), linear="1")
rule("_linalg_solve_ex", solved("*a M N, {b} -> {b}, *a M N, *a M, *a"))
rule("linalg_lu_solve", solved("*a M N, *a M, {b} -> {b}"), linear="2", padding={1: 1})
rule("linalg_ldl_solve", "*a M N, *a M, *a N k -> *a N k", linear="2", padding={1: 1})
rule("triangular_solve", "*a N K, *a N M -> *a N K, *a N M")
