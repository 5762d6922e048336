"""Samples of factorisations, solvers and Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from samite.testing.rulecheck.sample import Fill, Sample, floats

__all__ = ["samples"]

BATCHES = ((7,), (1, 3), ())


class Definite(Fill):
    """Symmetric positive definite matrices."""

    def make(self, generator: torch.Generator) -> torch.Tensor:
        x = super().make(generator)
        return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)


class Pivots(Fill):
    """Rows that no elimination has swapped."""

    def make(self, generator: torch.Generator) -> torch.Tensor:
        return torch.arange(1, self.shape[-1] + 1, dtype=torch.int32).expand(self.shape).contiguous()


def factored() -> Iterator[Sample]:
    for batch in BATCHES:
        square, tall = floats(*batch, 3, 3), floats(*batch, 4, 2)
        definite = Definite((*batch, 3, 3))
        yield Sample("aten.linalg_cholesky_ex", (definite,))
        yield Sample("aten.cholesky_inverse", (Definite((*batch, 3, 3)),))
        yield Sample("aten.linalg_inv_ex", (definite,))
        yield Sample("aten.linalg_pinv.atol_rtol_tensor", (tall,), gradient=False)
        yield Sample("aten.linalg_pinv.atol_rtol_tensor", (tall,), {"atol": floats(*batch, low=0.0)}, gradient=False)
        yield Sample("aten.linalg_matrix_exp", (square,))
        yield Sample("aten.linalg_householder_product", (tall, floats(*batch, 2)))
        yield Sample("aten.geqrf", (tall,), gradient=False)
        yield Sample("aten.ormqr", (tall, floats(*batch, 2), floats(*batch, 4, 3)))
        for mode in ("reduced", "complete", "r"):
            yield Sample("aten.linalg_qr", (tall, mode), gradient=mode == "reduced")
        for vectors in (True, False):
            yield Sample("aten._linalg_svd", (tall, False, vectors), gradient=vectors)
            yield Sample("aten._linalg_eigh", (definite, "L", vectors), gradient=vectors)
        yield Sample("aten.linalg_eig", (definite,), gradient=False)
        yield Sample("aten.linalg_eigvals", (definite,), gradient=False)
        yield Sample("aten._linalg_eigvals", (definite,), gradient=False)
        yield Sample("aten._linalg_det", (square,), gradient=False)
        yield Sample("aten._linalg_slogdet", (square,), gradient=False)
        yield Sample("aten.linalg_ldl_factor_ex", (definite,), gradient=False)
        yield Sample("aten.linalg_lu_factor_ex", (definite,))
        yield Sample("aten.linalg_lu", (definite,))
        for flags in ((True, True), (True, False), (False, True)):
            yield Sample("aten.lu_unpack", (square, Pivots((*batch, 3)), *flags), gradient=flags[0])


def solved() -> Iterator[Sample]:
    for batch in BATCHES:
        matrix, columns, rows = Definite((*batch, 3, 3)), floats(*batch, 3, 7), floats(*batch, 7, 3)
        pivots = Pivots((*batch, 3))
        for left, side in ((True, columns), (False, rows)):
            yield Sample("aten.linalg_solve_triangular", (matrix, side), {"upper": True, "left": left})
            yield Sample("aten._linalg_solve_ex", (matrix, side), {"left": left})
            yield Sample("aten.linalg_lu_solve", (matrix, pivots, side), {"left": left})
        yield Sample("aten._linalg_solve_ex", (matrix, floats(*batch, 3)))
        yield Sample("aten.cholesky_solve", (columns, Definite((*batch, 3, 3))))
        yield Sample("aten.linalg_ldl_solve", (matrix, pivots, columns), gradient=False)
        yield Sample("aten.triangular_solve", (columns, matrix), gradient=False)
    yield Sample("aten.linalg_solve_triangular", (Definite((1, 3, 3)), floats(7, 3, 2)), {"upper": False})


def transformed() -> Iterator[Sample]:
    for shape, dims in (((7, 4), [1]), ((7, 4), [0, 1]), ((3, 7, 6), [0, 2]), ((6,), [0])):
        numbers = floats(*shape, dtype=torch.complex128)
        yield Sample("aten._fft_c2c", (numbers, dims, 1, True))
        yield Sample("aten._fft_r2c", (floats(*shape), dims, 0, True))
        yield Sample("aten._fft_r2c", (floats(*shape), dims, 0, False))
        yield Sample("aten._fft_c2r", (numbers, dims, 2, 2 * (shape[dims[-1]] - 1)))


def samples() -> Iterator[Sample]:
    for family in (factored, solved, transformed):
        yield from family()
