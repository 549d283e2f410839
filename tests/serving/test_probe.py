"""What is read off a model is what its configuration says: the probe itself never looks there."""

from types import SimpleNamespace

import pytest
import torch

from epicrag.kernels import ops
from epicrag.serving import probe
from epicrag.serving.attention import RefusedModel
from epicrag.serving.model import ServedModel

WINDOW = 32
FULL = (None, None)

EXPECTED = {
    # family: (kind of each layer, (dim, interleaved, start, window, softcap) of each kind)
    "llama": ((0, 0, 0), [(12, False, 0, *FULL)]),
    "llama-yarn": ((0, 0, 0), [(12, False, 0, *FULL)]),
    "mistral-sliding": ((0, 0, 0), [(12, False, 0, WINDOW, None)]),
    "qwen2-sliding": ((0, 1, 1), [(12, False, 0, *FULL), (12, False, 0, WINDOW, None)]),
    "qwen2-moe": ((0, 1, 0), [(12, False, 0, WINDOW, None), (12, False, 0, *FULL)]),
    "smollm3": ((0, 1, 0), [(12, False, 0, *FULL), (0, False, 0, *FULL)]),
    "phi3": ((0, 0, 0), [(6, False, 0, *FULL)]),
    "glm": ((0, 0, 0), [(8, True, 0, *FULL)]),
    "gemma2": ((0, 1, 0), [(16, False, 0, WINDOW, 5.0), (16, False, 0, None, 5.0)]),
    "gemma3": ((0, 1, 0), [(16, False, 0, WINDOW, None), (16, False, 0, *FULL)]),
    "deepseek-v2": ((0, 0, 0), [(8, True, 16, *FULL)]),
    # V3 stores its rotary part interleaved, and pulls it apart before it turns it.
    "deepseek-v3": ((0, 0, 0), [(8, False, 16, *FULL)]),
    "cohere": ((0, 0, 0), [(12, True, 0, *FULL)]),
}


@pytest.mark.parametrize("family", EXPECTED)
def test_each_layer_is_read_as_it_is(checkpoint, family):
    layers = ServedModel.load(checkpoint(family), dtype="float32").kinds()
    found = [
        (k.rotary.dim, k.rotary.interleaved, k.rotary.start, k.window, k.softcap)
        for k in layers.kinds
    ]
    assert (layers.of_layer, found) == EXPECTED[family]


def test_the_two_frequencies_of_gemma_3_are_told_apart(checkpoint):
    model = ServedModel.load(checkpoint("gemma3"), dtype="float32")
    sliding, full = (kind.rotary.inv_freq for kind in model.kinds().kinds)
    rotary = next(m for m in model.module.modules() if hasattr(m, "full_attention_inv_freq"))
    assert sliding.equal(rotary.sliding_attention_inv_freq)
    assert full.equal(rotary.full_attention_inv_freq)
    assert not sliding.equal(full)


def test_latent_attention_has_values_of_another_width(checkpoint):
    model = ServedModel.load(checkpoint("deepseek-v3"), dtype="float32")
    geometry = model.geometry()
    assert (geometry.groups, geometry.head_dim, geometry.value_dim) == (4, 24, 12)
    # Sixteen entries of each key know nothing of positions; eight are turned.
    keys = model.keys_alone([5, 5], [0, 100])
    assert (keys[:, :, 0, :16] - keys[:, :, 1, :16]).abs().max() < 1e-5 * keys.abs().max()
    rotary = model.kinds().kinds[0].rotary
    assert torch.allclose(ops.rotate(keys[:, :, 0], 100, rotary), keys[:, :, 1], atol=1e-4)


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "smollm3", "deepseek-v2"])
def test_what_was_seen_can_be_kept_as_text(checkpoint, family):
    model = ServedModel.load(checkpoint(family), dtype="float32")
    seen = probe.look(model.module, model.context_window)
    again = probe.Seen.unpacked(seen.packed(), model.device)
    assert again.packed() == seen.packed()
    assert again.layers.of_layer == seen.layers.of_layer
    for one, other in zip(again.layers.kinds, seen.layers.kinds, strict=True):
        assert one.rotary.inv_freq.equal(other.rotary.inv_freq)
        assert (one.window, one.softcap) == (other.window, other.softcap)


def test_the_context_window_is_not_cut_to_the_sliding_window(checkpoint):
    assert ServedModel.load(checkpoint("mistral-sliding")).context_window == 1024


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("llama-dynamic", r"depend on the prompt's length \(dynamic\)"),
        ("phi3-longrope", "frequencies of layer 0 depend on the prompt's length"),
        ("stablelm", "does not pass keyword arguments"),
        ("gpt2", "its positions are not rotary: the values of layer 0 depend on them"),
        ("bloom", "arithmetic of its own"),
        ("gpt-oss", "learned sinks"),
        ("llama4", "neither causal nor a sliding window"),
        ("qwen3.5", "M-RoPE"),
        ("mamba", "none of its layers hands its keys"),
        ("lfm2", r"layers 0, 2 have no attention over keys \(recurrent or hybrid"),
    ],
)
def test_what_cannot_be_right_is_refused_with_the_reason(checkpoint, family, why):
    model = ServedModel.load(checkpoint(family), dtype="float32")
    before = model.module.config._attn_implementation
    with pytest.raises(RefusedModel, match=why):
        model.kinds()
    assert model.module.config._attn_implementation == before


def test_longrope_is_taken_where_the_window_ends_before_its_frequencies_change(checkpoint):
    model = ServedModel.load(checkpoint("phi3-longrope"), dtype="float32")
    assert probe.look(model.module, 512).layers.of_layer == (0, 0, 0)


def test_state_that_passes_beside_attention_is_noticed(checkpoint):
    """A layer that mixes neighbouring tokens, as recurrent parts do that stand beside an attention."""
    model = ServedModel.load(checkpoint("llama"), dtype="float32")
    norm = model.module.model.layers[1].input_layernorm
    norm.register_forward_hook(lambda _, __, out: out + 0.5 * out.roll(1, 1))
    with pytest.raises(RefusedModel, match="layer 1 carries state from token to token"):
        model.kinds()


def test_a_mask_that_sees_the_future_is_refused(checkpoint):
    model = ServedModel.load(checkpoint("llama"), dtype="float32")
    model.module.config.is_causal = False
    with pytest.raises(RefusedModel, match="neither causal nor"):
        model.kinds()


def test_frequencies_that_are_not_the_models_own_carry_no_key(checkpoint):
    model = ServedModel.load(checkpoint("llama"), dtype="float32")
    (rotary,) = (m for m in model.module.modules() if hasattr(m, "inv_freq"))
    turn = rotary.forward
    rotary.forward = lambda x, position_ids: turn(x, position_ids.float() * 1.01)
    with pytest.raises(RefusedModel, match="no rotation by its own frequencies"):
        model.kinds()


@pytest.mark.parametrize("width", [1, 7, 8, 99])
def test_a_window_is_read_off_the_mask_rule(width):
    def rule(_batch, _head, query, key):
        return (key <= query) & (key > query - width)

    assert probe._window(0, rule, 100) == width
    assert probe._window(0, rule, width) is None


def test_positions_of_several_axes_are_refused_before_anything_runs():
    text = SimpleNamespace(rope_parameters={"rope_type": "default", "mrope_section": [2, 2, 2]})
    module = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    with pytest.raises(RefusedModel, match="M-RoPE"):
        probe._check_settings(module)
