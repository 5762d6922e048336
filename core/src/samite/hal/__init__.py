"""The hardware abstraction layer: what devices and engines implement, and the hooks by which they are found.

Only the marker is imported here; the Protocols (`samite.hal.driver`, `.engine`, `.memory`) need torch.
"""

from __future__ import annotations

from samite.hal.hookspecs import hookimpl

__all__ = ["API_VERSION", "hookimpl"]

API_VERSION = 1
"""The version of the Protocols and hooks; plugins are found in entry point groups `samite.v1.*`."""
