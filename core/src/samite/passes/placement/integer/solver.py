"""Solving a program, by HiGHS (Huangfu & Hall 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samite.passes.placement.costs import Costs
from samite.passes.placement.integer.program import Problem, Program, Terms, write

__all__ = ["Solution", "solve"]

NODE_LIMIT = 50
"""Branch-and-bound nodes: a limit on work, not on time, so that every machine finds the same. It leaves a gap."""

GAP = 1e-3
"""Where to stop."""

SCALE = 1e4
"""What all costs come to, so that tolerances fit."""

EXCESS = 1e3
"""What as much memory again as the cap costs, in times of the placement that the search stands at: more than any time
can save, so that where nothing fits the least memory is found."""

RAISED = 1.02
"""The price of a byte, above what it is worth at the cap: enough to come out on the side that fits."""

INFEASIBLE, UNBOUNDED = 2, 3
"""States in which scipy leaves a program."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Solution:
    """The number of each class' plan, and the part of the cost by which it may be above the optimum. Where the limit on
    work leaves none it is that of the first plans, which make no use of the axis."""

    chosen: tuple[int, ...]
    gap: float


def solve(problem: Problem, costs: Costs) -> Solution:
    """The cheapest choice.

    A memory cap would make a knapsack of the program, which takes minutes where it takes a second without. So its rows
    are priced instead: the relaxation without integrality tells what a byte is worth at the cap, and with this price on
    bytes the program keeps to the cap by itself. The gap is to the relaxation.
    """
    program = write(problem, costs)
    price = np.array(program.price) / problem.scale * SCALE
    if problem.moments:
        worth, bound = _worth(program, price, problem.cap)
        x, _ = _minimum(program, price + RAISED * worth)
    else:
        x, bound = _minimum(program, price)
    if x is None:
        return Solution((0,) * len(program.x), 1.0)
    values: Vector = x
    chosen = tuple(max(range(len(columns)), key=lambda s: values[columns[s]]) for columns in program.x)
    reached = float(price @ values)
    return Solution(chosen, max(reached - bound, 0.0) / max(reached, 1e-12))


def _minimum(program: Program, price: Vector) -> tuple[Vector | None, float]:
    """The solution of least price, None if the limit on work is met before there is one, and a bound below which there
    is none."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    size = len(price)
    integrality = np.zeros(size)
    integrality[: sum(map(len, program.x))] = 1
    ones, zero, positive = (_matrix(forms, size) for forms in (_classes(program), program.zero, program.positive))
    found = milp(
        price,
        integrality=integrality,
        bounds=Bounds(0, np.inf),
        constraints=[
            LinearConstraint(ones, 1, 1),
            LinearConstraint(zero, 0, 0),
            LinearConstraint(positive, 0, np.inf),
        ],
        options={"node_limit": NODE_LIMIT, "mip_rel_gap": GAP},
    )
    # All classes at their first plan are a solution, and no price is below 0.
    assert found.status not in (INFEASIBLE, UNBOUNDED), found.message
    return found.x, float(found.mip_dual_bound or 0.0)


def _worth(program: Program, price: Vector, cap: int) -> tuple[Vector, float]:
    """For each variable what its bytes are worth at the cap, and the cost of the relaxation."""
    from scipy.optimize import linprog
    from scipy.sparse import block_array, eye_array

    size, moments = len(price), len(program.held)
    held = _matrix(program.held, size) / cap
    classes = _classes(program)
    found = linprog(
        np.concatenate([price, np.full(moments, EXCESS * SCALE)]),
        A_ub=block_array([[held, -eye_array(moments)], [-_matrix(program.positive, size), None]]),
        b_ub=np.concatenate([np.ones(moments), np.zeros(len(program.positive))]),
        A_eq=block_array([[_matrix([*classes, *program.zero], size + moments)]]),
        b_eq=np.concatenate([np.ones(len(classes)), np.zeros(len(program.zero))]),
    )
    assert found.status == 0, found.message
    worth: Vector = -found.ineqlin.marginals[:moments] @ held
    return worth, float(found.fun)


def _classes(program: Program) -> list[Terms]:
    return [[(column, 1.0) for column in columns] for columns in program.x]


def _matrix(forms: Sequence[Terms], columns: int) -> Any:
    from scipy.sparse import csr_array

    rows = np.repeat(np.arange(len(forms)), [len(form) for form in forms])
    terms = np.array([term for form in forms for term in form]).reshape(-1, 2)
    return csr_array((terms[:, 1], (rows, terms[:, 0].astype(np.int64))), shape=(len(forms), columns))
