"""Finding, loading and naming backends and engines.

Distributions announce plugins by entry points whose group carries the version of the plugin API
(`samite.v1.backends`, `samite.v1.engines`). Names are listed from metadata alone; a name that two distributions
claim, or that is made for another API version, is refused before anything is imported; only what is asked for is
loaded (by stevedore). What is installed while a process runs is found. Backends and engines share one namespace. A
short name ("cpu") is the middle of a full one ("samite/cpu/v1"), which a plugin may state as its `name`, and which
otherwise begins as its distribution does.

    driver(name) -> Driver      engine(name) -> Engine          the object, made at first use
    hooks(names)                                                the other hooks of the named plugins
    register(name, plugin)      load(name, "module:attribute")  unregister(name)
    listing(wanted)                                             every plugin with its state, for `samite doctor`
"""

from __future__ import annotations

from samite.plugins.registry import PluginInfo, Registry

__all__ = ["PluginInfo", "Registry", "driver", "engine", "hooks", "listing", "load", "register", "unregister"]

_process = Registry()
driver = _process.driver
engine = _process.engine
hooks = _process.hooks
listing = _process.listing
load = _process.load
register = _process.register
unregister = _process.unregister
