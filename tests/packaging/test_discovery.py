"""Installed distributions are found in a fresh process, or refused by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Environment

pytestmark = pytest.mark.packaging

NEVER = "raise AssertionError('imported')\n"
LOOK = """
import dataclasses, json, sys
from samite import plugins
from samite.errors import SamiteError

def error_of(name):
    try:
        plugins.driver(name)
    except SamiteError as error:
        return f"{type(error).__name__}: {error}"

errors = {name: error_of(name) for name in ("good", "twice", "older", "newer", "card", "nowhere")}
imported = sorted(name for name in sys.modules if name.startswith(("acme_", "bolt_")))
listing = {info.name: dataclasses.asdict(info) for info in plugins.listing(["nowhere"])}
print(json.dumps({"errors": errors, "imported": imported, "listing": listing}))
"""


@pytest.fixture(scope="module")
def look(
    environment: Callable[..., Environment], wheels: Mapping[str, Path], plugin: Callable[..., Path]
) -> Mapping[str, Any]:
    """What one process sees where good and bad plugins are installed."""
    good = (
        "from samite.hal import hookimpl\nclass Plugin:\n    @hookimpl\n    def samite_add_drivers(self):\n"
        "        from samite_tiny import make\n        return {'good': make}\n"
    )
    crowded = environment(
        wheels["core"],
        wheels["tiny"],
        plugin("acme-good", "samite.v1.backends", "good", good),
        plugin("acme-twice", "samite.v1.backends", "twice", NEVER),
        plugin("bolt-twice", "samite.v1.engines", "twice", NEVER),
        plugin("acme-older", "samite.v0.backends", "older", NEVER),
        plugin("acme-newer", "samite.v2.backends", "newer", NEVER),
        plugin("acme-card", "samite.v1.backends", "card", "import acme_runtime\n"),
        plugin("acme-unasked", "samite.v1.backends", "unasked", NEVER),
    )
    return crowded.json(LOOK)


def test_a_good_plugin_is_active_beside_bad_ones(look: Mapping[str, Any]) -> None:
    assert look["errors"]["good"] is None
    info = look["listing"]["good"]
    assert (info["state"], info["full_name"], info["origin"]) == ("active", "acme/good/v1", "acme-good 1.5")
    assert look["listing"]["tiny"]["full_name"] == "samite/tiny/v1"


def test_only_what_is_asked_for_and_allowed_is_imported(look: Mapping[str, Any]) -> None:
    assert look["imported"] == ["acme_good_module"]


def test_two_distributions_of_one_name_are_refused(look: Mapping[str, Any]) -> None:
    error = look["errors"]["twice"]
    assert error.startswith('PluginError: "twice" is provided twice: by ')
    assert "acme-twice 1.5" in error
    assert "bolt-twice 1.5" in error
    assert look["listing"]["twice"]["state"] == "unusable"


@pytest.mark.parametrize(("name", "version"), [("older", 0), ("newer", 2)])
def test_a_plugin_of_another_api_version_is_named(look: Mapping[str, Any], name: str, version: int) -> None:
    assert look["errors"][name] == (
        f'PluginError: "{name}" (acme-{name} 1.5) is made for plugin API v{version}; this Samite has v1\n'
        f"  help: pip install --upgrade acme-{name}"
    )
    info = look["listing"][name]
    assert (info["state"], info["full_name"]) == ("unusable", f"acme/{name}/v{version}")


def test_a_plugin_whose_dependency_is_missing_is_unusable(look: Mapping[str, Any]) -> None:
    assert look["errors"]["card"] == (
        "BackendUnusable: \"card\" cannot be imported: No module named 'acme_runtime'   (acme-card 1.5)"
    )
    assert look["listing"]["card"]["state"] == "unusable"


def test_a_plugin_that_breaks_on_import_is_unusable(look: Mapping[str, Any]) -> None:
    assert look["listing"]["unasked"]["state"] == "unusable"
    assert "AssertionError: imported" in look["listing"]["unasked"]["reason"]


def test_an_absent_plugin_says_how_to_install_it(look: Mapping[str, Any]) -> None:
    assert look["errors"]["nowhere"].endswith("help: pip install samite-nowhere")
    assert look["listing"]["nowhere"]["state"] == "absent"


def test_a_tiny_backend_passes_the_conformance_kit(
    environment: Callable[..., Environment], wheels: Mapping[str, Path]
) -> None:
    clean = environment(wheels["core"], wheels["tiny"])
    shutil.copy(Path(__file__).parent / "tiny_backend" / "test_tiny.py", clean.path)
    report = clean.run("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_tiny.py")
    assert " passed" in report.splitlines()[-1]
    assert "collectives of tiny: none" in report
