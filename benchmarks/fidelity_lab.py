"""A laboratory for repairs that the engine does not have: Llama's layers by hand, over dense stitched KV.

Keys are held un-rotated, (L, G, N, D), so that any change of a cached token is a plain sum, and a correction
that is linear in the probes' changes is one matrix per chunk and layer. Its figures for `none`,
`legolink(16)` and `legolink(16)+correct(0.5)` were compared with the engine's on one item in three compile
modes: KL equal within 0.0008. To be imported: make an `Item`, `prepare` it, `measure` policies on it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F

torch.set_grad_enabled(False)


class Llama:
    def __init__(self, folder: Path):
        from safetensors.torch import load_file

        c = json.loads((folder / "config.json").read_text())
        self.L, self.H, self.G, self.D = (
            c["num_hidden_layers"],
            c["num_attention_heads"],
            c["num_key_value_heads"],
            c["head_dim"],
        )
        self.eps = c["rms_norm_eps"]
        theta = c["rope_parameters"]["rope_theta"]
        self.inv = 1.0 / theta ** (torch.arange(0, self.D, 2).double() / self.D)
        w = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
        self.emb, self.norm = w["model.embed_tokens.weight"], w["model.norm.weight"]
        self.layers = []
        for l in range(self.L):
            p = f"model.layers.{l}."
            a = p + "self_attn."
            self.layers.append(
                {
                    "n1": w[p + "input_layernorm.weight"],
                    "n2": w[p + "post_attention_layernorm.weight"],
                    "qkv": torch.cat([w[a + f"{x}_proj.weight"] for x in "qkv"]),
                    "o": w[a + "o_proj.weight"],
                    "gu": torch.cat([w[p + f"mlp.{x}_proj.weight"] for x in ("gate", "up")]),
                    "down": w[p + "mlp.down_proj.weight"],
                }
            )

    def angles(self, pos):
        a = pos.double()[:, None] * self.inv
        return a.cos().float(), a.sin().float()

    def rms(self, x, w):
        return F.rms_norm(x, (x.shape[-1],), w, self.eps)

    def run(self, ids, attend, last, until=None):
        """attend(l, q (T,H,D), k (T,G,D), v (T,G,D)) un-rotated -> (T, H*D). Logits of the last rows."""
        h = self.emb[ids]
        T = len(ids)
        H, G, D = self.H, self.G, self.D
        for l, w in enumerate(self.layers[:until]):
            q, k, v = (self.rms(h, w["n1"]) @ w["qkv"].T).split((H * D, G * D, G * D), -1)
            h = h + attend(l, q.view(T, H, D), k.view(T, G, D), v.view(T, G, D)) @ w["o"].T
            g, u = (self.rms(h, w["n2"]) @ w["gu"].T).chunk(2, -1)
            h = h + (F.silu(g) * u) @ w["down"].T
        return self.rms(h[-last:], self.norm) @ self.emb.T if last else None


def turn(x, cos, sin):
    """x (..., n, D); cos, sin (n, D/2)."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def causal(m: Llama, ids, past=None, last=0):
    """Exact causal pass of ids behind `past` = (K0, V) (L,G,P,D). Returns K0, V of ids and the logits."""
    T = len(ids)
    P = past[0].shape[2] if past else 0
    cos, sin = m.angles(torch.arange(P + T))
    K = torch.empty(m.L, m.G, T, m.D)
    V = torch.empty(m.L, m.G, T, m.D)
    mask = None
    if P:
        mask = torch.arange(P + T)[None] <= torch.arange(P, P + T)[:, None]

    def attend(l, q, k, v):
        K[l], V[l] = k.transpose(0, 1), v.transpose(0, 1)
        kk, vv = K[l], V[l]
        if P:
            kk, vv = torch.cat((past[0][l].float(), kk), 1), torch.cat((past[1][l].float(), vv), 1)
        kk = turn(kk, cos, sin)
        qq = turn(q.transpose(0, 1), cos[P:], sin[P:])
        out = F.scaled_dot_product_attention(
            qq[None], kk[None], vv[None], attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return out[0].transpose(0, 1).reshape(T, -1)

    logits = m.run(torch.tensor(list(ids)), attend, last)
    return K, V, logits


@dataclass
class Item:
    """A prompt with its forced answer, what full prefill makes of it, and chunk caches by compile mode."""

    name: str
    ids: list[int]
    chunks: list[tuple[int, int]]  # [start, end) of each chunk
    reused: list[tuple[int, int]]  # exact segments: the system unit
    behinds: dict[str, list[tuple[int, ...]]]
    answer: list[int]
    gold: list[int] = field(default_factory=list)
    want: torch.Tensor | None = None  # (A, V) log-probabilities
    K: torch.Tensor | None = None  # full prefill's own, (L, G, N, D) half
    V: torch.Tensor | None = None
    made: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    exact: dict[str, list[bool]] = field(default_factory=dict)

    @property
    def n(self):
        return len(self.ids)


def greedy(m: Llama, item_ids, n, eos, K, V, logits):
    """Greedy answer after a causal pass; appends to lists."""
    out = []
    Ks, Vs = [K], [V]
    for _ in range(n):
        t = int(logits[-1].argmax())
        out.append(t)
        if t in eos or len(out) == n:
            break
        past = (torch.cat(Ks, 2), torch.cat(Vs, 2))
        k, v, logits = causal(m, [t], past, 1)
        Ks, Vs = [past[0], k], [past[1], v]
    return out


def prepare(m: Llama, item: Item, modes, n_answer=24, eos=(2,), keep_full=True):
    """Fill want, K, V, answer (greedy when empty) and the chunk caches."""
    if item.answer:
        K, V, logits = causal(m, item.ids + item.answer[:-1], None, len(item.answer))
    else:
        K, V, first = causal(m, item.ids, None, 1)
        item.answer = greedy(m, item.ids, n_answer, eos, K, V, first)
        past = (K, V)
        _K2, _V2, rest = (
            (None, None, first[:0])
            if len(item.answer) < 2
            else causal(m, item.answer[:-1], past, len(item.answer) - 1)
        )
        logits = torch.cat((first, rest))
    item.want = logits.log_softmax(-1)
    item.K, item.V = K[:, :, : item.n].half(), V[:, :, : item.n].half()
    for mode in modes:
        add_mode(m, item, mode)


def add_mode(m: Llama, item: Item, mode):
    K, V = item.K.clone(), item.V.clone()
    exact = []
    for (a, b), behind in zip(item.chunks, item.behinds[mode], strict=False):
        same = list(behind) == item.ids[:a]
        exact.append(same)
        if same:
            continue
        sys_n = item.reused[0][1] if item.reused else 0
        head = item.ids[:sys_n]
        if sys_n and list(behind[:sys_n]) == head and len(behind) >= sys_n:
            past = (item.K[:, :, :sys_n], item.V[:, :, :sys_n])
            k, v, _ = causal(m, [*behind[sys_n:], *item.ids[a:b]], past)
        else:
            k, v, _ = causal(m, [*behind, *item.ids[a:b]])
        K[:, :, a:b], V[:, :, a:b] = k[:, :, -(b - a) :].half(), v[:, :, -(b - a) :].half()
    item.made[mode] = (K, V)
    item.exact[mode] = exact


def first(k):
    return lambda n: list(range(min(k, n)))


@dataclass
class Policy:
    """What is recomputed, and how the rest is corrected.

    pick(n) -> local rows recomputed. probes(rows) -> those used as probes. weights(l, n, rest, probes, what)
    -> (len(rest), len(probes)) matrix or None: what is added to the rest is weights @ changes.
    """

    name: str
    pick: object = None
    weights: object = None
    sink: int = 4
    add: object = None  # add(l, c, rest) -> (dK, dV) (G, len(rest), D) given constants
    shrink: object = None  # shrink(changes (G, n, D)) -> share of their mean to trust
    picks: object = None  # picks(item, mode) -> per chunk rows, overriding pick


def measure(m: Llama, item: Item, mode: str, policy: Policy, want_change=False):
    """Link pass with the forced answer in the same pass. Returns dict(kl, top1, share...)."""
    K0, V0 = item.made[mode]
    N, A = item.n, len(item.answer)
    total = N + A - 1
    stale = torch.zeros(total, dtype=torch.bool)
    plans = []
    for a, b in item.reused:
        stale[a:b] = True
    for c, (a, b) in enumerate(item.chunks):
        stale[a:b] = True
        if item.exact[mode][c]:
            continue
        rows = (
            policy.picks(item, mode)[c]
            if policy.picks
            else (policy.pick(b - a) if policy.pick else [])
        )
        rows = sorted(set(rows))
        if rows:
            stale[torch.tensor(rows) + a] = False
        rest = [i for i in range(b - a) if i not in set(rows)]
        plans.append((c, a, b, rows, rest))
    compute = (~stale).nonzero().flatten()
    where = {int(p): i for i, p in enumerate(compute)}
    ids = torch.tensor(item.ids + item.answer[:-1])[compute]
    cos, sin = m.angles(torch.arange(total))
    mask = torch.arange(total)[None] <= compute[:, None]
    r = m.H // m.G
    big = (
        torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf).repeat_interleave(r, 0)[None, None]
    )
    S = len(compute)
    prep = []
    for c, a, _, rows, rest in plans:
        pr = (
            [x for x in rows if x >= min(policy.sink, len(rows) // 2)]
            if rows and policy.sink
            else rows
        )
        prep.append(
            (
                c,
                a,
                torch.tensor(pr, dtype=torch.long),
                torch.tensor(rest, dtype=torch.long),
                torch.tensor([where[a + x] for x in pr], dtype=torch.long),
            )
        )
    changes = []
    K = torch.zeros(m.G, total, m.D)
    V = torch.zeros(m.G, total, m.D)

    def attend(l, q, k, v):
        K[:, :N], V[:, :N] = K0[l].float(), V0[l].float()
        k, v = k.transpose(0, 1), v.transpose(0, 1)
        if policy.weights or policy.add:
            for c, a, pr, rest, at in prep:
                if not len(rest):
                    continue
                if policy.weights and len(pr):
                    dK, dV = k[:, at] - K[:, pr + a], v[:, at] - V[:, pr + a]
                    n = item.chunks[c][1] - a
                    wk, wv = (
                        policy.weights(l, n, rest, pr, "k"),
                        policy.weights(l, n, rest, pr, "v"),
                    )
                    sk = sv = 1.0
                    if policy.shrink:
                        sk, sv = policy.shrink(dK), policy.shrink(dV)
                    if wk is not None:
                        K[:, rest + a] += sk * (wk @ dK)
                    if wv is not None:
                        V[:, rest + a] += sv * (wv @ dV)
                if policy.add:
                    gK, gV = policy.add(l, item, mode, c, rest)
                    if gK is not None:
                        K[:, rest + a] += gK
                    if gV is not None:
                        V[:, rest + a] += gV
        K[:, compute], V[:, compute] = k, v
        if want_change:
            for c, a, pr, _, at in prep:
                changes.append(
                    (l, c, k[:, at] - K0[l][:, pr + a].float(), v[:, at] - V0[l][:, pr + a].float())
                )
        kk = turn(K, cos, sin)
        qq = turn(q.transpose(0, 1), cos[compute], sin[compute])  # (H, S, D)
        qq = qq.view(m.G, r, S, m.D).transpose(1, 2).reshape(1, m.G, S * r, m.D)
        out = F.scaled_dot_product_attention(qq, kk[None], V[None], attn_mask=big)
        return out.view(m.G, S, r, m.D).transpose(0, 1).reshape(S, -1)

    got = m.run(ids, attend, A).log_softmax(-1)
    kl = (item.want.exp() * (item.want - got)).sum(-1)
    gold = torch.tensor(item.answer)[:, None]
    context = sum(b - a for a, b in item.chunks) + sum(b - a for a, b in item.reused)
    out = {
        "id": item.name,
        "mode": mode,
        "policy": policy.name,
        "kl": float(kl.mean()),
        "kl_max": float(kl.max()),
        "top1": float((got.argmax(-1) == item.want.argmax(-1)).float().mean()),
        "gold_ll": float(got.gather(1, gold).mean()),
        "gold_ll_full": float(item.want.gather(1, gold).mean()),
        "share": sum(len(p[3]) for p in plans) / context,
        "context": context,
    }
    if want_change:
        out["changes"] = changes
    return out


def mean_weights(alpha, tau=None, kind="exp", k=True, v=True):
    """alpha(n) times the mean of the probes."""

    def weights(l, n, rest, pr, what):
        if (what == "k" and not k) or (what == "v" and not v):
            return None
        a = alpha(l, what) if callable(alpha) else alpha
        x = rest.float()
        f = torch.full_like(x, a)
        if tau:
            f = f * (torch.exp(-x / tau) if kind == "exp" else 1 / (1 + x / tau))
        return (f / len(pr))[:, None].expand(-1, len(pr))

    return weights


def james_stein(d):
    """1 - (variance of the mean) / (its square), at least 0: how far the probes agree. One number a layer and chunk."""
    n = d.shape[1]
    if n < 2:
        return 0.0
    mean = d.mean(1, keepdim=True)
    noise = float((d - mean).pow(2).sum()) / (n - 1) / n
    return max(0.0, 1.0 - noise / max(float(mean.pow(2).sum()), 1e-12))


def shaped_weights(ak, av, q):
    """change(n) = alpha s(n) m with s = (n + 1)^-q and m the least-squares fit to the probes."""

    def weights(l, n, rest, pr, what):
        s, t = (rest.float() + 1).pow(-q), (pr.float() + 1).pow(-q)
        return (ak if what == "k" else av) * s[:, None] * t[None] / t.pow(2).sum()

    return weights


def nearest_weights(alpha, smooth=None):
    """The nearest probe's change, or a softmax over log-distance with temperature."""

    def weights(l, n, rest, pr, what):
        d = (rest[:, None] - pr[None]).abs().float()
        if smooth:
            return alpha * torch.softmax(-d / smooth, 1)
        return alpha * F.one_hot(d.argmin(1), len(pr)).float()

    return weights


def interp_weights(alpha):
    """Linear interpolation between neighbouring probes, constant outside."""

    def weights(l, n, rest, pr, what):
        j = torch.searchsorted(pr, rest)
        lo, hi = (j - 1).clamp(0, len(pr) - 1), j.clamp(0, len(pr) - 1)
        span = (pr[hi] - pr[lo]).clamp(min=1).float()
        t = ((rest - pr[lo]).float() / span).clamp(0, 1)
        t = torch.where(lo == hi, torch.zeros_like(t), t)
        return alpha * (
            F.one_hot(lo, len(pr)) * (1 - t)[:, None] + F.one_hot(hi, len(pr)) * t[:, None]
        )

    return weights


def spread(k, head=4):
    """`head` first rows and k - head spread evenly over the rest."""

    def pick(n):
        if n <= k:
            return list(range(n))
        m = k - head
        step = (n - head) / max(m, 1)
        return [*range(head), *[int(head + step * (i + 0.5)) for i in range(m)]]

    return pick


EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Places along a chunk that share a row of the table."""


def fit_table(items, mode):
    """Mean of (full prefill - compiled) by layer and place, over chunks: (L, places, G, D), keys and values."""
    L, G, _, D = items[0].K.shape
    places = len(EDGES) - 1
    keys, values = torch.zeros(L, places, G, D), torch.zeros(L, places, G, D)
    counts = torch.zeros(places)
    for it in items:
        for (a, b), exact in zip(it.chunks, it.exact[mode], strict=True):
            if exact:
                continue
            made_k, made_v = (x[:, :, a:b].float() for x in it.made[mode])
            change_k, change_v = it.K[:, :, a:b].float() - made_k, it.V[:, :, a:b].float() - made_v
            for j in range(places):
                low, high = EDGES[j], min(EDGES[j + 1], b - a)
                if low < high:
                    keys[:, j] += change_k[:, :, low:high].sum(2)
                    values[:, j] += change_v[:, :, low:high].sum(2)
                    counts[j] += high - low
    scale = counts.clamp(min=1)[None, :, None, None]
    return keys / scale, values / scale


def bake(it, mode, table, name):
    """A new mode: `mode` with the table added to every chunk that is not exact."""
    K, V = (x.clone() for x in it.made[mode])
    edges = torch.tensor(EDGES[1:-1])
    for (a, b), exact in zip(it.chunks, it.exact[mode], strict=True):
        if not exact:
            j = torch.bucketize(torch.arange(b - a), edges, right=True)
            K[:, :, a:b] = (K[:, :, a:b].float() + table[0][:, j].transpose(1, 2)).half()
            V[:, :, a:b] = (V[:, :, a:b].float() + table[1][:, j].transpose(1, 2)).half()
    it.made[name], it.exact[name] = (K, V), it.exact[mode]
