"""Settings of a process: `samite.toml`, `[tool.samite]`, `SAMITE_*` and arguments, each stronger than the one before.

The files are the nearest upwards from the working directory. A key that no setting has and a value that no setting
takes are a ConfigError that names the file, variable or argument it came from.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    ByteSize,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from samite.errors import ConfigError, nearest

__all__ = ["Settings"]

PREFIX = "SAMITE_"
ORIGINS = "*origins"  # travels beside the values; no setting can be spelled so


class Settings(BaseSettings):
    """The settings in force. Frozen; `Settings(engine="lockstep")` overrides single ones by argument."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    backends: Annotated[tuple[str, ...], NoDecode] = Field(default=("cpu",), min_length=1)
    """Backends to load, most wanted first; in a variable they are separated by commas."""

    engine: str = "auto"
    """The engine that runs meshes; "auto" takes `torchrun` under torchrun, else `local`."""

    mode: Literal["aten", "inductor"] = "aten"
    """How the cpu backend executes a program."""

    threads_per_worker: int = Field(default=0, ge=0)
    """Intra-op threads of each worker; 0 shares the cores out evenly."""

    bucket_bytes: ByteSize = Field(default=ByteSize(25 * 2**20), gt=0)
    """Size that gradients are gathered to before one reduction; "25MiB" may be written."""

    overlap: bool | Literal["auto"] = "auto"
    """Whether collectives run beside the ops that do not need their results: "auto" where `topology` says that this
    wins, true wherever it can be. Gradients overlap once they fill more than one bucket, see `bucket_bytes`."""

    topology: str = ""
    """A TOML or JSON file with the topology that automatic placement reckons with, or "measure"; empty takes usual
    numbers."""

    memory_per_rank: ByteSize = Field(default=ByteSize(0), ge=0)
    """The memory that automatic placement may use on each rank, like "16GiB"; 0 is no limit."""

    max_workers: int = Field(default=16, ge=1)
    """The most worker processes that a mesh may start on this machine."""

    timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Seconds to wait for a worker to start and for a peer in a collective."""

    cache_dir: str = "off"
    """Where what backends compiled is kept for the next start: a folder, "auto" for `samite` in the user's cache, or
    "off"."""

    debug_checks: bool = False
    """Verify the module after every pass and compare replicas at every read."""

    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict[str, str])

    def sources(self) -> dict[str, str]:
        """Where each value came from: a file's path, a variable's name, "argument" or "default"."""
        return {field: self._origins.get(field, "default") for field in type(self).model_fields}

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *others: Any, **named: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (_Layers(settings_cls, init_settings, named.get("env_settings") or others[0]),)

    @field_validator("backends", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return [name.strip() for name in value.split(",") if name.strip()]
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _blame(cls, values: dict[str, Any], build: ModelWrapValidatorHandler[Settings]) -> Settings:
        """Turn pydantic's complaint into one that names the file, variable or argument."""
        origins: dict[str, str] = values.pop(ORIGINS, {})
        try:
            settings = build(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = str(first["loc"][0])
            raise ConfigError(
                f"{field} = {values.get(field)!r}: {first['msg'][0].lower()}{first['msg'][1:]}",
                where=origins.get(field, "argument"),
            ) from error
        settings._origins = origins
        return settings


class _Layers(PydanticBaseSettingsSource):
    """The four layers as one source, so that every value is kept together with where it came from."""

    def __init__(
        self, settings_cls: type[BaseSettings], arguments: PydanticBaseSettingsSource, env: PydanticBaseSettingsSource
    ) -> None:
        super().__init__(settings_cls)
        self.arguments, self.env = arguments, env

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError("the layers are read as a whole")

    def __call__(self) -> dict[str, Any]:
        fields = self.settings_cls.model_fields
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for path, table in _tables(Path.cwd()):
            for key, value in table.items():
                _check_key(key, fields, where=str(path))
                values[key], origins[key] = value, str(path)
        _check_variables(os.environ, fields)
        for key, value in self.env().items():
            values[key], origins[key] = value, PREFIX + key.upper()
        for key, value in self.arguments().items():
            _check_key(key, fields, where="argument")
            values[key], origins[key] = value, "argument"
        return values | {ORIGINS: origins}


def _tables(start: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The tables that apply in directory `start`, weakest first."""
    folders = (start, *start.parents)
    for folder in folders:
        if (path := folder / "samite.toml").is_file():
            yield path, _parse(path)
            break
    for folder in folders:
        if (path := folder / "pyproject.toml").is_file():
            tool = _parse(path).get("tool", {})
            # A pyproject.toml that says nothing about Samite (a package in a workspace) does not hide the one above.
            if "samite" in tool:
                if not isinstance(tool["samite"], dict):
                    raise ConfigError("[tool.samite] is not a table", where=str(path))
                yield path, tool["samite"]
                break


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path)) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}", where=str(path)) from error


def _check_key(key: str, known: Iterable[str], where: str) -> None:
    if key not in known:
        raise ConfigError(f'unknown key "{key}"', where=where, help=nearest(key, known))


def _check_variables(environment: Mapping[str, str], fields: Iterable[str]) -> None:
    """Refuse misspelled variables. Only near misses: plugins and launchers have SAMITE_* variables of their own."""
    known = [PREFIX + field.upper() for field in fields]
    for variable in sorted(environment):
        if variable.startswith(PREFIX) and variable not in known:
            close = difflib.get_close_matches(variable, known, n=1, cutoff=0.9)
            if close:
                raise ConfigError(
                    f'unknown variable "{variable}"', where="environment", help=f'did you mean "{close[0]}"?'
                )
