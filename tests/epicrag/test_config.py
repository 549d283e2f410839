"""Settings: who wins, what is refused, and that the error names the source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from epicrag import config as config_module
from epicrag.config import COMPILE_MODES, KEYS, Config, enforce_offline, load_config
from epicrag.errors import UsageError


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the user's own file and home into the test's folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user-config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user-data"))
    folder = tmp_path / "user-config" / "epicrag"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def load(project: Path, **flags: object) -> Config:
    return load_config(flags, environ={}, cwd=project)


def write(folder: Path, text: str) -> Path:
    path = folder / "epicrag.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_any_source_every_value_is_the_default(project: Path):
    config = load(project)
    assert set(config.origins.values()) == {"default"}
    assert config.index == config.home / "indexes" / "default"
    assert (config.model, config.embed_model) == ("smollm2-135m", "all-minilm-l6-v2")
    assert (config.chunk_tokens, config.top_k, config.max_tokens) == (512, 4, 256)
    assert (config.kv_memory, config.kv_disk, config.offline) == (2 * 1024**3, None, False)


def test_the_file_of_a_folder_above_counts_up_to_the_repository_or_home(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    file = write(project, 'top_k = 3\nindex = "./idx"')
    assert load(inner).top_k == 4  # no repository, and not below home: whose it is is not known
    (project / ".git").mkdir()
    config = load(inner)
    assert (config.top_k, config.index) == (3, project / "idx")
    assert config.origins["top_k"] == str(file)
    assert config_module.config_files(environ={}, cwd=inner)[1] == file
    nearer = write(inner.parent, "top_k = 4")
    assert config_module.config_files(environ={}, cwd=inner)[1] == nearer
    (inner / ".git").mkdir()  # a repository within
    assert load(inner).top_k == 4
    monkeypatch.setenv("HOME", str(project))
    (inner / ".git").rmdir(), (project / ".git").rmdir()
    assert load(inner).top_k == 4
    nearer.unlink()
    assert load(inner).top_k == 3
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    assert load(inner).top_k == (3 if file.stat().st_uid == 0 else 6)


def test_every_key_has_a_field_and_an_origin(project: Path):
    assert set(KEYS) == set(Config.__slots__) - {"origins"}
    assert set(load(project).origins) == set(KEYS)


def test_flag_beats_environment_beats_project_beats_user(project: Path, user_folder: Path):
    environ: dict[str, str] = {}
    flags: dict[str, object] = {}

    def model() -> tuple[str, str]:
        config = load_config(flags, environ=environ, cwd=project)
        return config.model, config.origins["model"]

    user_file = write(user_folder, 'model = "user"')
    assert model() == ("user", str(user_file))
    project_file = write(project, 'model = "project"')
    assert model() == ("project", str(project_file))
    environ["EPICRAG_MODEL"] = "environment"
    assert model() == ("environment", "env EPICRAG_MODEL")
    flags["model"] = "flag"
    assert model() == ("flag", "flag")


def test_flag_that_was_not_given_hides_nothing(project: Path):
    write(project, "top_k = 3")
    assert load(project, top_k=None).top_k == 3


def test_empty_variable_counts_as_not_set(project: Path):
    environ = {"EPICRAG_MODEL": "", "EPICRAG_OFFLINE": "", "EPICRAG_CONFIG": ""}
    config = load_config(environ=environ, cwd=project)
    assert config.origins["model"] == config.origins["offline"] == "default"


def test_named_file_is_read_in_place_of_the_projects(project: Path, tmp_path: Path):
    write(project, "top_k = 3\nmax_tokens = 9")
    other = tmp_path / "other.toml"
    other.write_text("top_k = 4", encoding="utf-8")
    config = load_config(environ={"EPICRAG_CONFIG": str(other)}, cwd=project)
    assert (config.top_k, config.max_tokens) == (4, 256)
    assert load_config({"config": other}, environ={}, cwd=project).top_k == 4


def test_named_file_that_is_missing_is_an_error(project: Path):
    with pytest.raises(UsageError, match="no configuration file"):
        load(project, config="absent.toml")


def test_paths_are_meant_from_where_they_were_written(project: Path, user_folder: Path):
    write(user_folder, 'home = "store"\nmodel = "./mine"')
    config = load(project, index="here")
    assert config.home == user_folder / "store"
    assert config.model == str(user_folder / "mine")
    assert config.index == project / "here"


def test_tilde_is_the_users_home(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert load(project, home="~/rag").home == Path("/home/someone/rag")


def test_index_follows_the_home(project: Path):
    assert load(project, home="/srv/rag").index == Path("/srv/rag/indexes/default")


@pytest.mark.parametrize(
    ("line", "key"), [("topk = 3", "top_k"), ('embed-model = "x"', "embed_model")]
)
def test_unknown_key_names_the_file_and_the_nearest_key(project: Path, line: str, key: str):
    path = write(project, line)
    with pytest.raises(UsageError) as caught:
        load(project)
    assert str(path) in caught.value.message
    assert caught.value.hint == f"Did you mean {key}?"


@pytest.mark.parametrize(
    "line",
    [
        "top_k = 0",
        'top_k = "6"',
        "top_k = true",
        "top_k = 2.5",
        "chunk_tokens = 1",
        "min_score = nan",
        "min_score = 1.5",
        'min_score = "high"',
        "min_score = true",
        'offline = "yes"',
        "offline = 1",
        'kv_memory = "2 sheep"',
        "kv_memory = -1",
        "kv_memory = true",
        'compile = "sideways"',
        'dtype = "int4"',
        'device = "gpu"',
        'log = "loud"',
        'model = ""',
        "model = 3",
        'home = " "',
        "system_prompt = 1",
        "[model]\nname = 1",
    ],
)
def test_bad_value_is_refused_with_its_source(project: Path, line: str):
    path = write(project, line)
    with pytest.raises(UsageError) as caught:
        load(project)
    assert str(path) in caught.value.message
    assert caught.value.hint and caught.value.hint.startswith("It should be ")


def test_bad_flag_and_bad_variable_say_so(project: Path):
    with pytest.raises(UsageError, match=r"\(flag\)"):
        load(project, top_k=-1)
    with pytest.raises(UsageError, match=r"\(env EPICRAG_LOG\)"):
        load_config(environ={"EPICRAG_LOG": "loud"}, cwd=project)


def test_bad_value_is_refused_even_where_a_stronger_source_hides_it(project: Path):
    write(project, "top_k = 0")
    with pytest.raises(UsageError):
        load(project, top_k=3)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ('"2GiB"', 2 * 1024**3),
        ('"1.5 gib"', 1536 * 1024**2),
        ('"500 MB"', 500_000_000),
        ("4096", 4096),
        ('"4096"', 4096),
        ('"0"', 0),
    ],
)
def test_sizes_have_units(project: Path, text: str, size: int):
    write(project, f"kv_memory = {text}\nkv_disk = {text}")
    assert load(project).kv_memory == load(project).kv_disk == size


def test_disk_can_be_unlimited_again(project: Path, user_folder: Path):
    write(user_folder, 'kv_disk = "1GiB"')
    write(project, 'kv_disk = "unlimited"')
    assert load(project).kv_disk is None


@pytest.mark.parametrize("text", ["1", "true", "YES"])
def test_offline_variable_takes_words_for_on(project: Path, text: str):
    config = load_config(environ={"EPICRAG_OFFLINE": text}, cwd=project)
    assert config.offline and config.origins["offline"] == "env EPICRAG_OFFLINE"


@pytest.mark.parametrize("text", ["0", "false", "No"])
def test_offline_variable_takes_words_for_off(project: Path, text: str):
    write(project, "offline = true")
    assert not load_config(environ={"EPICRAG_OFFLINE": text}, cwd=project).offline


def test_offline_variable_takes_no_other_word(project: Path):
    with pytest.raises(UsageError, match="EPICRAG_OFFLINE is 'maybe'"):
        load_config(environ={"EPICRAG_OFFLINE": "maybe"}, cwd=project)


@pytest.mark.parametrize("name", ["EPICRAG_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_switch_of_the_environment_is_hard(project: Path, name: str):
    write(project, "offline = false")
    config = load_config({"offline": False}, environ={name: "1"}, cwd=project)
    assert config.offline and config.origins["offline"] == f"env {name}"


def test_offline_reaches_the_libraries(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    enforce_offline(load(project))
    assert "HF_HUB_OFFLINE" not in os.environ
    # Given to monkeypatch, so that what follows is undone.
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "0")
    enforce_offline(load(project, offline=True))
    assert os.environ["HF_HUB_OFFLINE"] == os.environ["TRANSFORMERS_OFFLINE"] == "1"


def test_broken_toml_names_the_file(project: Path):
    path = write(project, "top_k = = 3")
    with pytest.raises(UsageError) as caught:
        load(project)
    assert str(path) in caught.value.message


def test_file_that_is_not_utf8_is_refused(project: Path):
    (project / "epicrag.toml").write_bytes(b'model = "\xff"')
    with pytest.raises(UsageError, match="not UTF-8"):
        load(project)


def test_byte_order_mark_is_no_part_of_the_file(project: Path):
    (project / "epicrag.toml").write_bytes(b"\xef\xbb\xbftop_k = 3")
    assert load(project).top_k == 3


def test_compile_modes_are_the_engines():
    from epicrag.serving import compile as engine

    assert set(COMPILE_MODES) == set(engine.COMPILE_MODES)


def test_system_prompt_is_the_engines_neutral_one(project: Path):
    """Chunks are compiled behind the engine's: another by default would cost every request exactness."""
    from epicrag.serving.prompt import DEFAULT_SYSTEM

    assert load(project).system_prompt == DEFAULT_SYSTEM


def test_loading_a_configuration_imports_nothing_heavy():
    heavy = "torch transformers numpy huggingface_hub"
    code = f"""
import sys
from epicrag.config import load_config
from epicrag.models import Models
Models(load_config()).list()
print([name for name in {heavy.split()} if name in sys.modules])
"""
    root = Path(config_module.__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("mode", ["neighbour(64)", "neighbour(0)", "neighbour(x)", "prefix(3)"])
def test_a_compile_mode_is_good_here_if_it_is_good_for_the_engine(project: Path, mode: str):
    from epicrag.serving.compile import check_mode

    def accepted(check, *args) -> bool:
        try:
            check(*args)
        except UsageError:
            return False
        return True

    write(project, f'compile = "{mode}"')
    assert accepted(load, project) == accepted(check_mode, mode) == (mode == "neighbour(64)")


def test_weights_are_read_from_a_text_or_a_table(tmp_path):
    def weights(value):
        return dict(load_config({"hybrid_weights": value}, environ={}, cwd=tmp_path).hybrid_weights)

    assert weights("dense=1, words=0.5") == {"dense": 1.0, "words": 0.5}
    assert weights({"words": 2}) == {"dense": 0.0, "words": 2.0}
    for bad in ("dense", "dense=x", "dense=-1", "dense=0,words=0", "title=1", "dense=nan", 3, ""):
        with pytest.raises(UsageError, match="hybrid_weights"):
            weights(bad)


def test_min_score_is_a_number_or_auto(tmp_path):
    def least(value):
        return load_config({"min_score": value}, environ={}, cwd=tmp_path).min_score

    assert (least("auto"), least("0.25"), least(0.3), least(None)) == (None, 0.25, 0.3, None)
    for bad in ("high", 1.5, "2", True, "nan"):
        with pytest.raises(UsageError, match="min_score"):
            least(bad)


def test_a_reranker_is_a_model_or_none(tmp_path):
    def model(value):
        return load_config({"rerank_model": value}, environ={}, cwd=tmp_path).rerank_model

    assert (model("none"), model("org/name")) == (None, "org/name")
    assert model("./m").startswith("/")


def test_a_back_end_that_is_none_is_said_at_once(project: Path):
    with pytest.raises(UsageError, match=r"EPICRAG_KERNELS is 'tritn'") as caught:
        load_config({}, environ={"EPICRAG_KERNELS": "tritn"}, cwd=project)
    assert "auto, reference, triton" in str(caught.value.hint)
    load_config({}, environ={"EPICRAG_KERNELS": ""}, cwd=project)


def test_the_back_ends_are_those_of_the_kernels(project: Path, monkeypatch: pytest.MonkeyPatch):
    from epicrag.kernels import choice

    for word in (*config_module.KERNELS, " Triton "):
        monkeypatch.setenv(choice.WISH, word)
        load_config({}, environ=os.environ, cwd=project)
        assert choice.wish() == word.strip().lower()
