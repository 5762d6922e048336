"""The smallest complete backend: a pretended device whose memory torch cannot see."""

from __future__ import annotations

from samite.hal import hookimpl


class Plugin:
    @hookimpl
    def samite_add_drivers(self):
        return {"tiny": make}


def make():
    from samite_tiny.driver import TinyDriver

    return TinyDriver()
