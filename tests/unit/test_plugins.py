from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from samite.errors import BackendMissing, BackendUnusable, PluginError
from samite.hal import hookimpl
from samite.hal.driver import Device, Driver
from samite.hal.engine import Engine
from samite.plugins import Registry


class NullDriver(Driver):
    def devices(self):
        return [Device("null")]

    def compile(self, program, devices, options):
        raise AssertionError

    def allocator(self, device):
        raise AssertionError


class NullEngine(Engine):
    max_ranks = 1

    def start(self, mesh, options):
        raise AssertionError


class Backend:
    @hookimpl
    def samite_add_drivers(self):
        return {"null": NullDriver}


class EnginePlugin:
    @hookimpl
    def samite_add_engines(self):
        return {"nowhere": NullEngine}


class ExtensionOfNothing:
    pass


BACKEND = """
    from samite.hal import hookimpl

    class Plugin:
        @hookimpl
        def samite_add_drivers(self):
            return {{"{name}": self.make}}

        def make(self):
            {make}
"""
RETURNS_NULL = """from unittest import mock; from samite.hal.driver import Driver
            return mock.Mock(spec=Driver)"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """Installs distributions into a directory of their own, and gives a registry that sees only those.

    Each is (distribution, version, group, entry, source of its module); the module has the entry's name and a suffix.
    """
    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)

    def install(*distributions: tuple[str, str, str, str, str]) -> Registry:
        for name, version, group, entry, source in distributions:
            module = f"{name.replace('-', '_')}_module"
            (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
            info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            (info / "entry_points.txt").write_text(f"[{group}]\n{entry} = {module}:Plugin\n")
        return Registry(
            lambda: [
                point
                for found in importlib.metadata.distributions(path=[str(tmp_path)])
                for point in found.entry_points
            ]
        )

    yield install
    for module in set(sys.modules) - modules:
        if module.endswith("_module"):
            del sys.modules[module]


@pytest.fixture
def empty() -> Registry:
    return Registry(list)


def backend(name: str, make: str) -> str:
    return BACKEND.format(name=name, make=make)


def test_an_installed_backend_is_made_once_and_imported_only_when_asked_for(site) -> None:
    registry = site(("acme-fpga", "1.0", "samite.v1.backends", "fpga", backend("fpga", RETURNS_NULL)))
    with pytest.raises(BackendMissing, match=r'"cpu" is not installed \(installed: fpga\)'):
        registry.driver("cpu")
    assert "acme_fpga_module" not in sys.modules
    assert registry.driver("fpga") is registry.driver("fpga")
    assert "acme_fpga_module" in sys.modules


def test_a_plugin_that_is_installed_in_mid_session_is_found_at_once(site) -> None:
    registry = site(("acme-fpga", "1.0", "samite.v1.backends", "fpga", backend("fpga", RETURNS_NULL)))
    with pytest.raises(BackendMissing, match="installed: fpga"):
        registry.driver("card")
    assert [info.name for info in registry.listing()] == ["fpga"]
    site(("acme-card", "1.0", "samite.v1.backends", "card", backend("card", RETURNS_NULL)))
    assert registry.driver("card")
    site(("acme-other", "1.0", "samite.v1.backends", "card", "raise AssertionError('imported')"))
    reasons = {info.name: info.reason for info in registry.listing()}
    assert set(reasons) == {"card", "fpga"}
    assert "provided twice" in reasons["card"]


def test_an_editable_install_that_is_renewed_within_a_tick_of_the_file_system_is_found(
    site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata here, modules where they are worked on; then the same files with the same times say more."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.syspath_prepend(work)
    (work / "card_module.py").write_text(textwrap.dedent(backend("card", RETURNS_NULL)))
    registry = site(("acme-fpga", "1.0", "samite.v1.backends", "fpga", backend("fpga", RETURNS_NULL)))
    assert [info.name for info in registry.listing()] == ["fpga"]
    info = tmp_path / "acme_fpga-1.0.dist-info"
    before = [(path, path.stat()) for path in (info / "entry_points.txt", info, tmp_path)]
    with (info / "entry_points.txt").open("a") as points:
        points.write("card = card_module:Plugin\n")
    for path, times in before:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert registry.driver("card")


def test_loading_leaves_no_cache_behind_and_logs_nothing(tmp_path: Path) -> None:
    script = (
        "import logging, sys, warnings; logging.basicConfig(level=logging.INFO); warnings.simplefilter('error')\n"
        "from samite import plugins\n"
        "assert plugins.engine('lockstep').max_ranks == 64\n"
        "plugins.listing(['nowhere'])\n"
        "assert 'stevedore' in sys.modules\n"
    )
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.iterdir())


def test_full_names(site) -> None:
    registry = site(("acme-fpga", "1.0", "samite.v1.backends", "fpga", backend("fpga", RETURNS_NULL)))
    assert registry.driver("acme/fpga/v1") is registry.driver("fpga")
    with pytest.raises(BackendMissing, match=r'"other/fpga/v1" is not installed \(installed: acme/fpga/v1\)'):
        registry.driver("other/fpga/v1")
    with pytest.raises(PluginError, match="asks for plugin API v2; this Samite has v1"):
        registry.driver("acme/fpga/v2")
    for wrong in ("acme/fpga", "acme/fpga/1", "a/b/c/v1"):
        with pytest.raises(PluginError, match="is not the name of a plugin"):
            registry.driver(wrong)


def test_a_plugin_may_name_its_organisation(site) -> None:
    source = backend("fpga", RETURNS_NULL) + "\n        name = 'bit_works/fpga/v1'\n"
    registry = site(("acme-fpga", "1.0", "samite.v1.backends", "fpga", source))
    assert registry.driver("bit_works/fpga/v1")
    (info,) = registry.listing()
    assert info.full_name == "bit_works/fpga/v1"


def test_a_missing_backend_says_how_to_install_it(empty: Registry) -> None:
    with pytest.raises(BackendMissing) as error:
        empty.driver("gpu_triton")
    assert error.value.what == '"gpu_triton" is not installed (installed: none)'
    assert error.value.help == "pip install samite-gpu-triton"


def test_two_distributions_of_one_name_are_refused_before_any_import(site) -> None:
    registry = site(
        ("acme-fpga", "1.0", "samite.v1.backends", "fpga", "raise AssertionError('imported')"),
        ("bolt-fpga", "2.0", "samite.v1.backends", "fpga", "raise AssertionError('imported')"),
        ("good", "1", "samite.v1.backends", "good", backend("good", RETURNS_NULL)),
    )
    with pytest.raises(PluginError, match='"fpga" is provided twice') as error:
        registry.driver("fpga")
    assert "acme-fpga 1.0" in error.value.what
    assert "bolt-fpga 2.0" in error.value.what
    fpga, good = registry.listing()
    assert (fpga.state, good.state) == ("unusable", "active")
    assert "acme-fpga 1.0" in fpga.reason
    assert "bolt-fpga 2.0" in fpga.reason


def test_backends_and_engines_share_one_namespace(site) -> None:
    registry = site(
        ("one", "1", "samite.v1.backends", "both", "raise AssertionError('imported')"),
        ("two", "1", "samite.v1.engines", "both", "raise AssertionError('imported')"),
    )
    with pytest.raises(PluginError, match="provided twice"):
        registry.engine("both")


@pytest.mark.parametrize("version", [0, 2, 10])
def test_another_api_version_is_named_before_any_import(site, version: int) -> None:
    registry = site(("acme-old", "3.1", f"samite.v{version}.backends", "old", "raise AssertionError('imported')"))
    with pytest.raises(PluginError) as error:
        registry.driver("old")
    assert error.value.what == f'"old" (acme-old 3.1) is made for plugin API v{version}; this Samite has v1'
    assert error.value.help == "pip install --upgrade acme-old"
    (info,) = registry.listing()
    assert (info.state, info.full_name, info.origin) == ("unusable", f"acme/old/v{version}", "acme-old 3.1")
    assert "made for plugin API" in info.reason


def test_a_name_of_both_api_versions_is_usable(site) -> None:
    registry = site(
        ("acme-old", "3.1", "samite.v0.backends", "fpga", "raise AssertionError('imported')"),
        ("acme-new", "1.0", "samite.v1.backends", "fpga", backend("fpga", RETURNS_NULL)),
    )
    assert registry.driver("fpga")
    (info,) = registry.listing()
    assert (info.state, info.full_name) == ("active", "acme/fpga/v1")


def test_a_misspelled_name_is_recognised(empty: Registry) -> None:
    empty.register("gpu_triton", ExtensionOfNothing)
    with pytest.raises(BackendMissing) as error:
        empty.hooks(["gpu_tritn"])
    assert error.value.help == 'did you mean "gpu_triton"? Otherwise: pip install samite-gpu-tritn'


def test_asking_for_an_engine_as_backend_says_so(empty: Registry) -> None:
    empty.register("nowhere", EnginePlugin)
    with pytest.raises(BackendMissing, match='"nowhere" is no backend') as error:
        empty.driver("nowhere")
    assert "as engine" in error.value.help
    assert isinstance(empty.engine("nowhere"), NullEngine)


def test_a_backend_that_cannot_work_here_gives_its_reason(site) -> None:
    reason = "from samite.errors import BackendUnusable; raise BackendUnusable('no card in this machine')"
    registry = site(
        ("a", "1", "samite.v1.backends", "card", backend("card", reason)),
        ("b", "1", "samite.v1.backends", "needy", backend("needy", "import no_such_runtime")),
        ("c", "1", "samite.v1.backends", "hollow", "import no_such_module"),
    )
    with pytest.raises(BackendUnusable, match="no card in this machine"):
        registry.driver("card")
    with pytest.raises(BackendUnusable, match=r"No module named 'no_such_runtime'.*\(b 1\)"):
        registry.driver("needy")
    with pytest.raises(BackendUnusable, match=r"No module named 'no_such_module'.*\(c 1\)"):
        registry.driver("hollow")
    assert [(info.name, info.state) for info in registry.listing()] == [
        ("card", "unusable"), ("hollow", "unusable"), ("needy", "unusable")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", r"has no attribute 'Plugin'"),
        ("raise RuntimeError('boom')", r"RuntimeError: boom"),
        (backend("fpga", "raise RuntimeError('boom')"), r"RuntimeError: boom"),
        (backend("fpga", "return object()"), r'"fpga" is no Driver: it lacks .*compile'),
        (backend("other", RETURNS_NULL), r"adds nothing of this name, but other"),
        (backend("fpga", RETURNS_NULL) + "\n        name = 'acme/card/v1'\n", r"calls itself 'acme/card/v1'"),
        (backend("fpga", RETURNS_NULL) + "\n        name = 7\n", r"calls itself 7"),
        ("class Plugin: pass", r"announced as backend, but is extension"),
        ("class Plugin:\n    def __init__(self, x): pass", r"TypeError"),
        (
            backend("fpga", "pass").replace("samite_add_drivers", "samite_add_driver"),
            r"a hook that this Samite has not",
        ),
    ],
)
def test_a_broken_plugin_is_named_and_leaves_the_others_alone(site, source: str, message: str) -> None:
    registry = site(
        ("acme-fpga", "1.0", "samite.v1.backends", "fpga", source),
        ("good", "1", "samite.v1.backends", "good", backend("good", RETURNS_NULL)),
    )
    for _ in range(2):  # a second attempt fails in the same way, not because of the first
        with pytest.raises(PluginError, match=message) as error:
            registry.driver("fpga")
        assert "fpga" in error.value.what
    assert registry.driver("good")
    assert [info.state for info in registry.listing()] == ["unusable", "active"]


def test_listing_names_what_is_wanted_and_absent(empty: Registry) -> None:
    empty.register("null", Backend)
    states = {info.name: (info.state, info.reason) for info in empty.listing(["null", "gpu_triton", "local/null/v1"])}
    assert states == {"null": ("active", ""), "gpu_triton": ("absent", "pip install samite-gpu-triton")}


def test_register_and_unregister(empty: Registry) -> None:
    empty.register("null", Backend)
    assert isinstance(empty.driver("null"), NullDriver)
    assert empty.driver("local/null/v1") is empty.driver("null")
    with pytest.raises(PluginError, match="provided already, by registered at run time"):
        empty.register("null", Backend)
    empty.unregister("null")
    with pytest.raises(BackendMissing):
        empty.driver("null")
    with pytest.raises(PluginError, match="was not registered at run time"):
        empty.unregister("null")
    empty.register("null", Backend())
    assert isinstance(empty.driver("null"), NullDriver)


def test_an_installed_plugin_is_neither_hidden_nor_unregistered(site) -> None:
    registry = site(("acme-fpga", "1.0", "samite.v1.backends", "fpga", backend("fpga", RETURNS_NULL)))
    with pytest.raises(PluginError, match=r"provided already, by acme-fpga 1\.0"):
        registry.register("fpga", Backend)
    with pytest.raises(PluginError, match="was not registered"):
        registry.unregister("fpga")


@pytest.mark.parametrize("name", ["", "a/b/v1", "9x", "Has-Dash"])
def test_names_are_checked(empty: Registry, name: str) -> None:
    with pytest.raises(PluginError, match="cannot name a plugin"):
        empty.register(name, Backend)


def test_load_by_spec(empty: Registry, site, tmp_path: Path) -> None:
    (tmp_path / "by_spec_module.py").write_text(textwrap.dedent(backend("mine", RETURNS_NULL)))
    empty.load("mine", "by_spec_module:Plugin")
    assert empty.driver("mine")
    with pytest.raises(BackendUnusable, match="No module named 'absent_module'"):
        empty.load("x", "absent_module:Plugin")
    with pytest.raises(PluginError, match="no attribute 'Other'"):
        empty.load("x", "by_spec_module:Other")
    with pytest.raises(PluginError, match='write "module:attribute"'):
        empty.load("x", "not a spec")


def test_hooks_ask_only_what_is_loaded_and_each_plugin_once(site, empty: Registry) -> None:
    class Two:
        @hookimpl
        def samite_add_drivers(self):
            return {"one": NullDriver, "two": NullDriver}

        @hookimpl
        def samite_add_rules(self):
            return ["rule"]

    assert empty.hooks().samite_add_rules() == []
    empty.register("one", Two)
    empty.register("two", Two)
    assert empty.hooks().samite_add_rules() == [["rule"]]
    empty.unregister("one")
    assert empty.hooks().samite_add_rules() == [["rule"]]
    empty.unregister("two")
    assert empty.hooks().samite_add_rules() == []
    registry = site(("acme-fpga", "1.0", "samite.v1.backends", "fpga", backend("fpga", "raise AssertionError")))
    registry.hooks(["fpga"])
    assert "acme_fpga_module" in sys.modules, "loaded, and its factory not called"


def test_an_extension_brings_only_other_hooks(empty: Registry) -> None:
    class Rules:
        @hookimpl
        def samite_add_rules(self):
            return ["rule"]

    empty.register("my_rules", Rules)
    assert empty.hooks(["my_rules"]).samite_add_rules() == [["rule"]]
    (info,) = empty.listing()
    assert (info.kind, info.state) == ("extension", "active")
    with pytest.raises(BackendMissing):
        empty.driver("my_rules")
