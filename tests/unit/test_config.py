from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from samite.config import Settings
from samite.errors import ConfigError


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project directory as the working directory, and no SAMITE_* variables."""
    for variable in [name for name in os.environ if name.startswith("SAMITE_")]:
        monkeypatch.delenv(variable)
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    return tmp_path


def test_defaults_come_from_nowhere() -> None:
    settings = Settings()
    assert (settings.backends, settings.engine, settings.mode) == (("cpu",), "auto", "aten")
    assert settings.bucket_bytes == 25 * 1024 * 1024
    assert set(settings.sources().values()) == {"default"}
    assert set(settings.sources()) == set(Settings.model_fields)


def test_each_layer_is_stronger_than_the_one_before(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml, pyproject = workplace / "samite.toml", workplace / "pyproject.toml"
    toml.write_text('engine = "one"\nmax_workers = 1\nmode = "inductor"\ntimeout_s = 1\n')
    pyproject.write_text('[tool.samite]\nengine = "two"\nmax_workers = 2\nmode = "aten"\n')
    monkeypatch.setenv("SAMITE_ENGINE", "three")
    monkeypatch.setenv("SAMITE_MAX_WORKERS", "3")
    settings = Settings(engine="four")
    assert (settings.engine, settings.max_workers, settings.mode, settings.timeout_s) == ("four", 3, "aten", 1.0)
    sources = settings.sources()
    assert sources["engine"] == "argument"
    assert sources["max_workers"] == "SAMITE_MAX_WORKERS"
    assert sources["mode"] == str(pyproject)
    assert sources["timeout_s"] == str(toml)
    assert sources["bucket_bytes"] == "default"


def test_the_nearest_files_upwards_count(workplace: Path) -> None:
    (workplace / "samite.toml").write_text('engine = "far"\nmax_workers = 5\n')
    near = workplace / "src" / "samite.toml"
    near.write_text('engine = "near"\n')
    settings = Settings()
    assert (settings.engine, settings.sources()["engine"]) == ("near", str(near))
    assert settings.max_workers == 16, "files are not merged across directories"


def test_a_pyproject_that_says_nothing_hides_nothing(workplace: Path) -> None:
    (workplace / "pyproject.toml").write_text('[tool.samite]\nengine = "lockstep"\n')
    (workplace / "src" / "pyproject.toml").write_text("[tool.ruff]\nline-length = 120\n")
    assert Settings().engine == "lockstep"


@pytest.mark.parametrize("spelling", ["gpu_triton,cpu", " gpu_triton , cpu ,"])
def test_backends_in_a_variable_are_separated_by_commas(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_BACKENDS", spelling)
    assert Settings().backends == ("gpu_triton", "cpu")


def test_backends_in_a_file_are_a_list_or_a_string(workplace: Path) -> None:
    (workplace / "samite.toml").write_text('backends = ["gpu_triton", "cpu"]\n')
    assert Settings().backends == ("gpu_triton", "cpu")
    (workplace / "samite.toml").write_text('backends = "gpu_triton,cpu"\n')
    assert Settings().backends == ("gpu_triton", "cpu")


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_ENGINE", "")
    assert Settings().sources()["engine"] == "default"


def test_sizes_may_have_units(workplace: Path) -> None:
    (workplace / "samite.toml").write_text('bucket_bytes = "4MiB"\n')
    assert Settings().bucket_bytes == 4 * 2**20


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().engine = "other"


@pytest.mark.parametrize("name", ["samite.toml", "pyproject.toml"])
def test_an_unknown_key_names_the_file_the_key_and_the_nearest(workplace: Path, name: str) -> None:
    table = "[tool.samite]\n" if name == "pyproject.toml" else ""
    (workplace / name).write_text(table + "thread_per_worker = 2\n")
    with pytest.raises(ConfigError) as error:
        Settings()
    assert error.value.what == 'unknown key "thread_per_worker"'
    assert error.value.where == str(workplace / name)
    assert '"threads_per_worker"' in error.value.help


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(ConfigError, match='unknown key "enginne"') as error:
        Settings(enginne="local")
    assert (error.value.where, error.value.help) == ("argument", 'did you mean "engine"?')


def test_a_misspelled_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_BACKEND", "cpu")
    with pytest.raises(ConfigError, match='did you mean "SAMITE_BACKENDS"'):
        Settings()


def test_variables_of_others_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_GPU_TRITON_AUTOTUNE", "1")
    assert Settings().backends == ("cpu",)


@pytest.mark.parametrize(
    "text",
    [
        'mode = "fast"',
        "threads_per_worker = -1",
        "max_workers = 0",
        "bucket_bytes = 0",
        "timeout_s = 0",
        "timeout_s = inf",
        "backends = []",
        "backends = 3",
        'debug_checks = "perhaps"',
    ],
)
def test_a_wrong_value_names_its_file_and_key(workplace: Path, text: str) -> None:
    (workplace / "samite.toml").write_text(text + "\n")
    with pytest.raises(ConfigError) as error:
        Settings()
    assert error.value.what.startswith(text.split()[0])
    assert error.value.where == str(workplace / "samite.toml")


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_MAX_WORKERS", "many")
    with pytest.raises(ConfigError, match=r"max_workers = 'many'.*\(SAMITE_MAX_WORKERS\)"):
        Settings()


@pytest.mark.parametrize("content", ["engine =\n", "engine = lockstep\n", b"engine = '\xff'\n"])
def test_a_broken_file_is_named(workplace: Path, content: str | bytes) -> None:
    path = workplace / "samite.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as error:
        Settings()
    assert error.value.where == str(path)


def test_tool_samite_must_be_a_table(workplace: Path) -> None:
    (workplace / "pyproject.toml").write_text("[tool]\nsamite = 3\n")
    with pytest.raises(ConfigError, match="not a table"):
        Settings()
