"""The fast forward pass: it is the modeling code's, or it is not used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from epicrag.errors import UsageError
from epicrag.kernels import native
from epicrag.serving import layout
from epicrag.serving.attention import Causal, Enough
from epicrag.serving.fingerprint import model_fingerprint
from epicrag.serving.forward import choose
from epicrag.serving.model import ServedModel
from epicrag.serving.weights import stored_kind

KNOWN = ["llama", "llama-yarn", "mistral", "qwen2", "qwen3", "phi3", "smollm3"]


class Counted(Causal):
    """Counts its calls, and may have had enough after some."""

    def __init__(self, enough: int | None = None) -> None:
        self.calls = 0
        self.enough = enough

    def attend(self, layer: int, *given: Any) -> torch.Tensor:
        self.calls += 1
        if layer == self.enough:
            raise Enough
        return super().attend(layer, *given)


@pytest.fixture(scope="module")
def load(checkpoint: Callable[[str], Path]) -> Callable[..., ServedModel]:
    made: dict[tuple[str, str], ServedModel] = {}

    def get(family: str, quantize: str = "none") -> ServedModel:
        if (family, quantize) not in made:
            made[family, quantize] = ServedModel.load(
                checkpoint(family), device="cpu", dtype="float32", quantize=quantize
            )
        return made[family, quantize]

    return get


def differences(model: ServedModel, n_tokens: int) -> float:
    """Between the fast pass and the modeling code, for the last two rows, in standard deviations."""
    ids = [(5 + 31 * i) % 380 for i in range(n_tokens)]
    positions = torch.arange(n_tokens) * 3
    rows = range(max(0, n_tokens - 2), n_tokens)
    got = model.forward(ids, positions, Counted(), rows)
    want = model.modeling_logits(ids, positions, Counted(), rows)
    assert got.shape == want.shape
    return float((got - want).abs().max() / want.std())


@pytest.mark.parametrize("n_tokens", [1, 3, 20, 40])
@pytest.mark.parametrize("family", KNOWN)
def test_decoder_gives_the_logits_of_the_modeling_code(
    load: Callable[..., ServedModel], family: str, n_tokens: int
):
    model = load(family)
    assert model.forward_kind.startswith("fast decoder")
    assert differences(model, n_tokens) < 1e-4


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3"])
def test_quantised_decoder_equals_the_modeling_code_over_its_own_weights(
    load: Callable[..., ServedModel], family: str
):
    model = load(family, "int8")
    assert max(differences(model, n) for n in (1, 3, 40)) < 1e-4


def test_quantised_weights_are_others_and_embeddings_stay(load: Callable[..., ServedModel]):
    plain, rounded = load("llama").module, load("llama", "int8").module
    assert rounded.model.embed_tokens.weight.equal(plain.model.embed_tokens.weight)
    for name in ("q_proj", "o_proj"):
        layers = (getattr(m.model.layers[1].self_attn, name) for m in (plain, rounded))
        one, other = (layer.weight.detach() for layer in layers)
        assert 0 < float((one - other).abs().max()) < 0.02 * float(one.abs().max())


def test_output_layer_that_shares_the_embeddings_is_quantised_alone(
    tmp_path: Path, checkpoint: Callable[[str], Path]
):
    from tests.conftest import make_model

    folder = make_model(tmp_path / "tied", "llama", tie_word_embeddings=True)
    before = ServedModel.load(folder, device="cpu", dtype="float32").module
    after = ServedModel.load(folder, device="cpu", dtype="float32", quantize="int8")
    assert after.module.model.embed_tokens.weight.equal(before.model.embed_tokens.weight)
    assert not after.module.lm_head.weight.equal(before.lm_head.weight)
    assert differences(after, 3) < 1e-4


def test_fused_weights_are_the_memory_of_the_module(load: Callable[..., ServedModel]):
    model = load("llama")
    attention = model.module.model.layers[0].self_attn
    query, key = attention.q_proj.weight, attention.k_proj.weight
    assert key.data_ptr() == query.data_ptr() + query.nbytes


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "stablelm", "glm"])
def test_unknown_layout_runs_through_the_modeling_code_and_says_why(
    load: Callable[..., ServedModel], family: str
):
    assert "is not among the layouts" in load(family).forward_kind
    with pytest.raises(UsageError, match="quantize"):
        load(family, "int8")


def test_model_that_differs_from_its_layout_is_not_guessed_at(checkpoint: Callable[[str], Path]):
    model = ServedModel.load(checkpoint("llama"), device="cpu", dtype="float32")
    model.module.model.layers[1].mlp.down_proj = nn.Sequential(nn.Identity())
    with pytest.raises(layout.UnknownLayoutError, match="Sequential"):
        layout.take_apart(model.module)


def test_decoder_that_is_not_the_model_is_not_used(checkpoint: Callable[[str], Path]):
    model = ServedModel.load(checkpoint("llama"), device="cpu", dtype="float32")
    norm = model.module.model.norm
    norm.register_forward_hook(lambda _module, _given, out: 2 * out + 1)
    fast, kind = choose(model, "float32", "none")
    assert fast is None
    assert "standard deviations off" in kind


@pytest.mark.parametrize("family", ["llama", "glm"])
@pytest.mark.parametrize("n_tokens", [2, 40])
def test_pass_that_had_enough_ends_there_and_is_empty(
    load: Callable[..., ServedModel], family: str, n_tokens: int
):
    batch = Counted(enough=1)
    out = load(family).forward([5] * n_tokens, torch.arange(n_tokens), batch, [0])
    assert (out.numel(), batch.calls) == (0, 2)


def test_no_rows_are_wanted_and_none_come(load: Callable[..., ServedModel]):
    for n_tokens in (2, 40):
        out = load("llama").forward([5] * n_tokens, torch.arange(n_tokens), Counted(), [])
        assert len(out) == 0


def test_quantised_model_is_another_model(load: Callable[..., ServedModel], checkpoint: Any):
    assert load("llama").fingerprint == model_fingerprint(checkpoint("llama"))
    assert load("llama", "int8").fingerprint != load("llama").fingerprint


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_checkpoint_in_sixteen_bits_is_decoded_from_them_without_loss(
    tmp_path: Path, checkpoint: Callable[[str], Path], stored: torch.dtype
):
    if why := native.why_not():
        pytest.skip(why)
    name = str(stored).removeprefix("torch.")
    folder = tmp_path / name
    ServedModel.load(checkpoint("qwen3"), device="cpu").module.to(stored).save_pretrained(folder)
    assert stored_kind(folder) == name
    model = ServedModel.load(folder, device="cpu", dtype="float32")
    assert model.forward_kind == f"fast decoder, {name} weights"
    assert differences(model, 3) < 1e-4


def test_narrow_dtype_of_the_module_is_served_too(checkpoint: Callable[[str], Path]):
    model = ServedModel.load(checkpoint("llama"), device="cpu", dtype="bfloat16")
    assert model.forward_kind.startswith("fast decoder")
    assert differences(model, 3) < 0.15


@pytest.mark.model
def test_real_model_is_decoded_fast_and_right(smollm2: Path):
    for quantize in ("none", "int8"):
        model = ServedModel.load(smollm2, device="cpu", dtype="float32", quantize=quantize)
        assert model.forward_kind.startswith("fast decoder")
        assert max(differences(model, n) for n in (1, 3, 20, 40)) < 1e-3


def test_quantised_engine_keeps_its_kv_apart(checkpoint: Callable[[str], Path]):
    from epicrag.serving.engine import Engine

    plain, rounded = (
        Engine.load(
            checkpoint("llama"), name="x", device="cpu", dtype="float32", quantize=kind,
            kv_memory_bytes=8 << 20,
        )
        for kind in ("none", "int8")
    )  # fmt: skip
    assert rounded.refusal is None
    assert rounded.profile != plain.profile
    assert not rounded.own_keys() & plain.own_keys()
