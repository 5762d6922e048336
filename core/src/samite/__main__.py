"""`python -m samite`: the command line."""

from __future__ import annotations

from samite.cli import main

main()
