"""docs/hal.md shows every hook and every method that a plugin may implement, as it is declared."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from samite.hal import driver, engine, hookspecs, memory

DOCS = (Path(__file__).parents[2] / "docs" / "hal.md").read_text(encoding="utf-8")
HOOKS = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("samite_")}
PROTOCOLS = [
    driver.Driver,
    driver.Executable,
    driver.Bound,
    driver.StateSlot,
    driver.Event,
    driver.Communicator,
    driver.InFlight,
    memory.Allocator,
    engine.Engine,
    engine.Workers,
    engine.Future,
]


def declared(protocol: type) -> list[str]:
    """The members of a Protocol, spelled as in its source."""
    fields = [f"{name}: {type_}" for name, type_ in protocol.__annotations__.items()]
    methods = [(name, member) for name, member in vars(protocol).items() if inspect.isfunction(member)]
    return fields + [spell(name, method) for name, method in methods if not name.startswith("_")]


def spell(name: str, function: object) -> str:
    return unquoted(f"def {name}{inspect.signature(function)}")


def unquoted(text: str) -> str:
    """`inspect` quotes postponed annotations; a Literal's own quotes do not matter either."""
    return text.translate({ord(quote): None for quote in "'\""})


def section(name: str) -> str:
    match = re.search(rf"^class {name}:\n((?: {{4}}.*\n)+)", DOCS, re.MULTILINE)
    assert match, f"docs/hal.md has no class {name}"
    return match[1]


@pytest.mark.parametrize("name", HOOKS)
def test_the_docs_have_every_hook(name: str) -> None:
    assert f"{spell(name, HOOKS[name])}\n" in DOCS
    assert f"| `{name}` |" in DOCS


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_says_what_to_return_and_when_it_is_asked(name: str) -> None:
    text = inspect.getdoc(HOOKS[name]) or ""
    assert len(text) > 40


def test_the_hooks_are_those_of_the_design() -> None:
    assert [name.removeprefix("samite_add_") for name in HOOKS] == [
        "drivers",
        "engines",
        "passes",
        "rules",
        "commands",
        "report_sections",
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.__name__)
def test_the_docs_have_every_member(protocol: type) -> None:
    shown = [line.strip() for line in section(protocol.__name__).splitlines()]
    assert [unquoted(line) for line in shown] == [unquoted(member) for member in declared(protocol)]


def test_no_protocol_is_left_out() -> None:
    found = {
        member
        for module in (driver, engine, memory)
        for member in vars(module).values()
        if inspect.isclass(member) and member.__module__ == module.__name__ and getattr(member, "_is_protocol", False)
    }
    assert found == set(PROTOCOLS)
