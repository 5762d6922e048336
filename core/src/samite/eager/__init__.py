"""Ops on distributed tensors outside of compiled functions, on the same rules and passes as the compiler.

A call is planned once (`plans`): traced (`tracing`), placed and partitioned as a program of one op (`placing`), written
out as a Python function of this rank (`emission`), and found again by its op, layouts, shapes and literals (`keys`).
Where the ranks are other processes the placed calls are recorded and sent as programs (`stream`).
"""

from __future__ import annotations
