"""What each layer of a model does with positions, read off the model itself: its keys, values and masks.

Nothing here knows an architecture's name. Two tiny forward passes are run in which every token attends to
itself alone, so that what a layer is given depends on the token and, through the rotary embedding only, on its
position. What is then not explained by a rotation with the model's own frequencies is refused, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from epicrag.kernels import ops
from epicrag.serving.attention import Enough, RefusedModel

NAME = "epicrag_probe"
"""The probe's attention implementation in transformers, and the keyword it travels under."""

_NOT_OURS = {
    "s_aux": "its attention has learned sinks beside the keys (s_aux), which the engine does not have",
    "position_bias": "its attention adds a bias by distance to the scores, not a rotation of the keys",
}
"""Keywords that modeling code hands its attention function, and why the engine cannot follow."""

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""transformers' mask rule: batch, head, query and key index to whether the query sees the key."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer gave to its attention function."""

    heads: int
    keys: Tensor  # (B, G, T, Dk)
    values: Tensor  # (B, G, T, Dv)
    softcap: float | None
    rule: Rule | None
    """None where the modeling code handed on no mask, or one it made by itself."""


@dataclass(slots=True)
class Probe:
    """Records every layer's keys, values and mask rule, and lets each token attend to itself alone."""

    n_layers: int
    layers: dict[int, Layer] = field(default_factory=dict)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rule: Any,
        kwargs: dict[str, Any],
    ) -> Tensor:
        """query (B, H, T, Dk), key (B, G, T, Dk), value (B, G, T, Dv).

        Returns each token's own value, (B, T, H, Dv). Raises _Done after the last layer.
        """
        for name, why in _NOT_OURS.items():
            if kwargs.get(name) is not None:
                raise RefusedModel(why)
        self.layers[layer] = Layer(
            query.shape[1],
            key.detach().float().clone(),
            value.detach().float().clone(),
            kwargs.get("softcap"),
            rule.see if isinstance(rule, _Rule) else None,
        )
        if len(self.layers) == self.n_layers:
            raise _Done
        return value.repeat_interleave(query.shape[1] // key.shape[1], 1).transpose(1, 2)


class _Done(Exception):
    """All layers have been seen: what comes after the last attention is not computed."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """Stands where a mask would: the modeling code hands it to its layers without looking inside."""

    see: Rule

    def __radd__(self, scores: object) -> object:
        raise RefusedModel(
            "its attention is arithmetic of its own, with the mask added by hand, and cannot be exchanged"
        )


def _hand_on_rule(*_: Any, mask_function: Rule, **__: Any) -> _Rule:
    return _Rule(mask_function)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    epicrag_probe: Probe | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: query (B, H, T, Dk), key (B, G, T, Dk), value (B, G, T, Dv)."""
    if epicrag_probe is None:
        raise RefusedModel("its modeling code does not pass keyword arguments to its attention")
    layer: int = module.layer_idx  # type: ignore[assignment]
    return epicrag_probe.attend(layer, query, key, value, attention_mask, kwargs), None


@dataclass(frozen=True, slots=True)
class Seen:
    """All that was read off a model."""

    layers: ops.Layers
    heads: int
    groups: int
    head_dim: int
    value_dim: int

    def packed(self) -> str:
        """All of it as JSON, exact to the last bit."""
        kinds = [
            {
                "inv_freq": kind.rotary.inv_freq.tolist(),
                "dim": kind.rotary.dim,
                "interleaved": kind.rotary.interleaved,
                "start": kind.rotary.start,
                "window": kind.window,
                "softcap": kind.softcap,
            }
            for kind in self.layers.kinds
        ]
        shape = [self.heads, self.groups, self.head_dim, self.value_dim]
        return json.dumps({"kinds": kinds, "of_layer": self.layers.of_layer, "shape": shape})

    @classmethod
    def unpacked(cls, text: str, device: torch.device) -> Seen:
        """What `packed` gave. ValueError, KeyError or TypeError for any other text."""
        spec = json.loads(text)
        kinds = [
            ops.LayerKind(
                ops.Rotary(
                    torch.tensor(kind["inv_freq"], dtype=torch.float32, device=device),
                    kind["dim"],
                    kind["interleaved"],
                    kind["start"],
                ),
                kind["window"],
                kind["softcap"],
            )
            for kind in spec["kinds"]
        ]
        return cls(ops.Layers(tuple(kinds), tuple(spec["of_layer"])), *spec["shape"])


@dataclass(slots=True)
class Alone:
    """A batch whose tokens see nothing but themselves, and that keeps the keys of all layers."""

    n_layers: int
    keys: list[Tensor] = field(default_factory=list)  # (G, T, Dk) each

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        """See `attention.Batch`. Raises Enough after the last layer."""
        self.keys.append(keys.float().clone())
        if len(self.keys) == self.n_layers:
            raise Enough
        return values.repeat_interleave(queries.shape[0] // keys.shape[0], 0).transpose(0, 1)


@torch.inference_mode()
def look(module: Any, context_window: int) -> Seen:
    """Read a causal model of transformers. RefusedModel where reuse cannot be right, saying why."""
    _register()
    _check_settings(module)
    other = 11 if module.config.get_text_config().vocab_size > 11 else 0
    # Neighbouring positions in each row: transformers takes others for packed sequences, with masks of their own.
    ids = [[5, 5], [5, 5], [5, 5], [other, 5]]
    end = context_window - 1
    # The far row first: frequencies that follow the longest position are back at rest afterwards. Same ids
    # and shapes: in 16 bits, a rounding that differs would send a token to another expert.
    far = _run(module, ids, [[0, 1], [7, 8], [end - 1, end], [0, 1]])
    near = _run(module, ids, [[0, 1], [7, 8], [301, 302], [0, 1]])
    for index, layer in enumerate(near):
        _check_tokens(index, layer, far[index], _tolerance(module))
    heads, groups, head_dim, value_dim = _shape(near)
    frequencies = _frequencies(module)
    windows: dict[int, int | None] = {}
    kinds: list[ops.LayerKind] = []
    of_layer: list[int] = []
    known: dict[tuple[Any, ...], int] = {}
    for index, layer in enumerate(near):
        turn = _rotation(index, layer.keys[:3, :, 0], frequencies, _tolerance(module))
        if id(layer.rule) not in windows:
            windows[id(layer.rule)] = _window(index, layer.rule, context_window)
        signature = (*turn, windows[id(layer.rule)], layer.softcap)
        if signature not in known:
            known[signature] = len(kinds)
            kinds.append(ops.LayerKind(_rotary(turn, frequencies), *signature[-2:]))
        of_layer.append(known[signature])
    return Seen(ops.Layers(tuple(kinds), tuple(of_layer)), heads, groups, head_dim, value_dim)


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _hand_on_rule)


def _check_settings(module: Any) -> None:
    """Refuse what a short probe of text cannot show."""
    config = module.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        if part.get("mrope_section"):
            raise RefusedModel("its positions have several axes (M-RoPE), not one")
        if part.get("rope_type") == "dynamic":
            raise RefusedModel("its rotary frequencies depend on the prompt's length (dynamic)")


def _run(module: Any, ids: list[list[int]], positions: list[list[int]]) -> list[Layer]:
    """One forward pass of tokens (B, T) that see themselves alone. Returns what each layer gave, in order."""
    config = module.config
    n_layers: int = config.get_text_config().num_hidden_layers
    probe = Probe(n_layers)
    device = next(module.parameters()).device
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        module(
            input_ids=torch.tensor(ids, device=device),
            position_ids=torch.tensor(positions, device=device),
            use_cache=False,
            **{NAME: probe},
        )
    except _Done:
        pass
    except RefusedModel:
        raise
    except (
        Exception
    ) as error:  # whatever modeling code does not bear: the model can still be served in full
        raise RefusedModel(
            f"its modeling code cannot be probed ({type(error).__name__}: {error})"
        ) from error
    finally:
        config._attn_implementation = before
    missing = sorted(set(range(n_layers)) - set(probe.layers))
    if missing:
        raise RefusedModel(_without_attention(missing, n_layers))
    return [probe.layers[index] for index in range(n_layers)]


def _without_attention(missing: Sequence[int], n_layers: int) -> str:
    if len(missing) == n_layers:
        return "none of its layers hands its keys to an attention function that can be exchanged"
    named = ", ".join(map(str, missing[:4])) + (" …" if len(missing) > 4 else "")
    return f"layers {named} have no attention over keys (recurrent or hybrid model)"


def _check_tokens(index: int, near: Layer, far: Layer, tolerance: float) -> None:
    """Refuse a layer whose keys or values depend on more than the token and a rotation by its position."""
    keys, values = near.keys, near.values
    if any(_differ(x[0, :, 1], x[3, :, 1], tolerance) for x in (keys, values)):
        raise RefusedModel(
            f"layer {index} carries state from token to token outside of attention (recurrent or hybrid model)"
        )
    if _differ(values[0, :, 0], values[2, :, 0], tolerance):
        raise RefusedModel(
            f"its positions are not rotary: the values of layer {index} depend on them"
        )
    if _differ(keys[1], far.keys[1], tolerance):
        raise RefusedModel(f"the rotary frequencies of layer {index} depend on the prompt's length")


def _shape(layers: Sequence[Layer]) -> tuple[int, int, int, int]:
    """H, G, Dk and Dv, which must be the same in all layers: they share one pool."""
    shapes = {(x.heads, x.keys.shape[1], x.keys.shape[-1], x.values.shape[-1]) for x in layers}
    if len(shapes) > 1:
        listed = ", ".join(f"{g} x {k}/{v}" for _, g, k, v in sorted(shapes))
        raise RefusedModel(f"its layers have keys and values of different shapes ({listed})")
    return shapes.pop()


def _frequencies(module: Any) -> list[Tensor]:
    """Every distinct set of rotary frequencies that the model holds, (dim / 2,) each."""
    found: list[Tensor] = []
    for name, buffer in module.named_buffers():
        if name.endswith("inv_freq") and buffer.dim() == 1:
            frequency = buffer.detach().float().clone()
            if not any(frequency.shape == f.shape and frequency.equal(f) for f in found):
                found.append(frequency)
    return found


Turn = tuple[int, bool, int]
"""Index of the frequencies (-1: the layer does not turn its keys), interleaved, first entry turned."""


def _rotary(turn: Turn, frequencies: Sequence[Tensor]) -> ops.Rotary:
    index, interleaved, start = turn
    if index < 0:
        return ops.Rotary(torch.empty(0), 0)
    return ops.Rotary(frequencies[index], 2 * frequencies[index].numel(), interleaved, start)


def _rotation(layer: int, keys: Tensor, frequencies: Sequence[Tensor], tolerance: float) -> Turn:
    """The rotation that carries a layer's key at position 0 to its keys at 7 and 301. keys: (3, G, D)."""
    turns: list[Turn] = [(-1, False, 0)]
    for index, frequency in enumerate(frequencies):
        spare = keys.shape[-1] - 2 * frequency.numel()
        if spare >= 0:
            starts = (0, spare) if spare else (0,)
            turns.extend((index, pairs, start) for pairs in (False, True) for start in starts)
    errors = {turn: _error(keys, _rotary(turn, frequencies)) for turn in turns}
    best = min(errors, key=lambda turn: errors[turn])
    if not errors[best] <= tolerance:
        raise RefusedModel(
            f"no rotation by its own frequencies carries a key of layer {layer} from one position to another"
            if frequencies
            else "it has no rotary position embedding (inv_freq) to relocate keys with"
        )
    return best


def _error(keys: Tensor, rotary: ops.Rotary) -> float:
    """Largest distance from the turned key to the key computed there, over the largest entry."""
    moved = [ops.rotate(keys[0], delta, rotary) if rotary.dim else keys[0] for delta in (7, 301)]
    worst = max(float((moved[i] - keys[i + 1]).abs().max()) for i in range(2))
    return worst / max(float(keys.abs().max()), 1e-9)


def _window(layer: int, rule: Rule | None, n_positions: int) -> int | None:
    """How far back a layer sees, None for all the way, by asking its mask rule about queries and keys."""
    if rule is None:
        raise RefusedModel(f"layer {layer} makes a mask of its own (not causal, or with a bias)")
    zero = torch.zeros((), dtype=torch.int64)

    def seen(query: int) -> Tensor:
        keys = torch.arange(n_positions)
        return rule(zero, zero, torch.full_like(keys, query), keys).expand(n_positions)

    width = int(seen(n_positions - 1).sum())
    places = {0, 1, width - 1, width, width + 1, 2 * width + 1, n_positions // 2, n_positions - 2}
    for query in sorted(place for place in places if 0 <= place < n_positions):
        keys = torch.arange(n_positions)
        if not seen(query).equal((keys <= query) & (keys > query - width)):
            raise RefusedModel(
                f"layer {layer} sees tokens by a rule that is neither causal nor a sliding window"
            )
    return width if width < n_positions else None


def _differ(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return float((one - other).abs().max()) > tolerance * max(float(one.abs().max()), 1e-9)


def _tolerance(module: Any) -> float:
    """Relative to the largest entry: angles of far positions are worked out in float32 by the model."""
    return 1e-3 if next(module.parameters()).dtype in (torch.float32, torch.float64) else 5e-2
