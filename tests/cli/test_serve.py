"""The flags of `epicrag serve`, up to where the server begins."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from epicrag.config import DEFAULT_LINK_POLICY

TOKEN = "a-token-of-the-operator"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run `epicrag serve` with flags; return the exit code, and what the server would be started with."""
    from epicrag.cli.main import main
    from epicrag.server import run

    begun: dict[str, Any] = {}
    monkeypatch.delenv("EPICRAG_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)

    def fake(config: Any, settings: Any, **more: Any) -> int:
        run.bind(settings).close()
        begun.update(config=config, settings=settings, **more)
        return 0

    def start(*flags: str) -> tuple[int, dict[str, Any]]:
        begun.clear()
        with monkeypatch.context() as patch:
            patch.setattr(run, "serve", fake)
            port = [] if "--port" in flags else ["--port", "0"]
            return main(["serve", "--home", str(tmp_path), *port, *flags]), begun

    return start


def test_flags_that_other_engines_have_mean_the_same(serve: Any):
    code, begun = serve(
        "--model", "some-model", "--max-model-len", "2048", "--gpu-memory-utilization", "0.5",
        "--tensor-parallel-size", "1", "--served-model-name", "ours", "--pic-chunk-size", "256",
        "--max-running", "3", "--max-waiting", "0", "--request-timeout", "9", "--max-body-mb", "1",
        "--no-index", "--quantize", "int8", "--kv-dtype", "int8", "--compile", "isolated",
    )  # fmt: skip
    assert code == 0
    config, settings = begun["config"], begun["settings"]
    assert (config.model, config.gpu_memory_utilization) == ("some-model", 0.5)
    assert (config.quantize, config.kv_dtype, config.compile) == ("int8", "int8", "isolated")
    assert (settings.served_model_name, settings.chunk_tokens) == ("ours", 256)
    assert (settings.max_running, settings.max_waiting) == (3, 0)
    assert (settings.request_timeout_s, settings.max_body_bytes) == (9, 1024**2)
    assert (begun["with_index"], begun["context_limit"]) == (False, 2048)


@pytest.mark.parametrize(
    ("flags", "policy"),
    [
        ([], DEFAULT_LINK_POLICY),
        (["--pic"], DEFAULT_LINK_POLICY),
        (["--no-pic"], "prefix"),
        (["--pic-legolink-sink-tokens", "32"], "legolink(32)"),
        (["--link-policy", "full"], "full"),
        (["--no-pic", "--link-policy", "prefix"], "prefix"),
    ],
)
def test_link_policies_have_several_names(serve: Any, flags: list[str], policy: str):
    assert serve(*flags)[1]["config"].link_policy == policy


@pytest.mark.parametrize(
    "flags",
    [
        ["--no-pic", "--link-policy", "full"],
        ["--no-pic", "--pic-legolink-sink-tokens", "8"],
        ["--pic", "--link-policy", "prefix"],
        ["--tensor-parallel-size", "2"],
        ["--host", "0.0.0.0"],
        ["--host", "no.such.host.invalid"],
        ["--allow-origin", "*"],
        ["--allow-host", "http://x"],
        ["--token-file", "none.toml"],
        ["--log-format", "xml"],
        ["--port", "70000"],
        ["--max-running", "0"],
        ["--gpu-memory-utilization", "7"],
        ["--pic-chunk-size", "8"],
        ["--link-policy", "magic"],
    ],
)
def test_what_cannot_be_served_is_a_usage_error(serve: Any, flags: list[str], capfd: Any):
    assert serve(*flags) == (2, {})
    assert "error:" in capfd.readouterr().err


def test_with_a_token_other_hosts_may_be_served(serve: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EPICRAG_TOKEN", TOKEN)
    code, begun = serve("--host", "0.0.0.0", "--allow-origin", "https://a.example")
    assert code == 0
    assert begun["settings"].tenants.of(TOKEN).is_operator
    assert TOKEN not in repr(begun["settings"])
    monkeypatch.setenv("EPICRAG_TOKEN", "short")
    assert serve("--host", "0.0.0.0") == (2, {})


def test_a_port_that_is_taken_is_a_usage_error(serve: Any, capfd: Any):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert serve("--port", port) == (2, {})
    assert f"port {port} of 127.0.0.1 is taken" in capfd.readouterr().err
