"""Writing text by hand in JAX, without meshax: what ours is measured beside.

It is the program that someone who knows JAX would write for one device: layers as a list, queries, keys and values as
one product, a cache for each layer that is updated in place, many tokens in one `scan`. All texts stand at the same
position, and the likeliest token is taken: an engine does more.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .plain_jax import check_parts

_OF_TRAINING = ("dropout", "label_smoothing", "z_loss", "logit_jitter")


@dataclass(frozen=True)
class PlainDecoder:
    """The model: its sizes, and its kinds of parts."""

    d_model: int
    heads: int
    kv_heads: int
    d_kv: int
    d_ff: int
    layers: int
    vocab: int
    activation: str
    gated: bool
    positions: str
    dtype: str

    def init(self, key: Any) -> dict[str, Any]:
        """Makes parameters, as narrow as they are used."""
        keys = iter(jax.random.split(key, 2 + 4 * self.layers))

        def weight(*shape: int) -> Any:
            return (jax.random.normal(next(keys), shape) / math.sqrt(shape[0])).astype(self.dtype)

        width, inner = self.d_model, self.d_ff * (2 if self.gated else 1)
        layers = [
            {
                "norm1": jnp.ones(width),
                "qkv": weight(width, (self.heads + 2 * self.kv_heads) * self.d_kv),
                "o": weight(self.heads * self.d_kv, width),
                "norm2": jnp.ones(width),
                "wi": weight(width, inner),
                "wo": weight(self.d_ff, width),
            }
            for _ in range(self.layers)
        ]
        embedding = weight(self.vocab, width)
        return {"embedding": embedding, "layers": layers, "norm": jnp.ones(width), "logits": weight(width, self.vocab)}

    def empty_cache(self, slots: int, places: int) -> list[Any]:
        """Makes room for the keys and values of texts: [slots, heads of keys, places, size of a head] twice a layer."""
        shape = (slots, self.kv_heads, places, self.d_kv)
        return [(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype)) for _ in range(self.layers)]

    def write(self, w: Any, cache: list[Any], token: Any, at: Any, tokens: int) -> tuple[list[Any], Any]:
        """Returns the cache and so many tokens, [tokens, slots], that follow one at a position."""

        def turn(carry: Any, at: Any) -> Any:
            cache, token = self.step(w, carry[0], carry[1], at)
            return (cache, token), token

        (cache, _), written = lax.scan(turn, (cache, token), at + jnp.arange(tokens))
        return cache, written

    def step(self, w: Any, cache: list[Any], token: Any, at: Any) -> tuple[list[Any], Any]:
        """Returns the cache with a token of each text, [slots], at a position, and the likeliest next tokens."""
        x = w["embedding"][token]
        if self.positions == "sinusoidal":
            x = x + jnp.concatenate(_turned(at, self.d_model // 2)).astype(x.dtype)
        kept = []
        for layer, own in zip(w["layers"], cache, strict=True):
            mixed, own = self._attended(_norm(x, layer["norm1"]) @ layer["qkv"], own, at)
            x = x + mixed @ layer["o"]
            inner = _norm(x, layer["norm2"]) @ layer["wi"]
            first, *gate = jnp.split(inner, 2, -1) if self.gated else [inner]
            inner = math.prod(gate, start=getattr(jax.nn, self.activation)(first))
            x = x + inner @ layer["wo"]
            kept.append(own)
        return kept, jnp.argmax(_norm(x, w["norm"]) @ w["logits"], -1).astype(jnp.int32)

    def _attended(self, qkv: Any, cache: tuple[Any, Any], at: Any) -> tuple[Any, tuple[Any, Any]]:
        groups, width = self.kv_heads, self.d_kv
        q, k, v = (
            part.reshape(len(qkv), groups, -1, width)
            for part in jnp.split(qkv, np.cumsum([self.heads * width, groups * width]), -1)
        )
        if self.positions == "rotary":
            q, k = _rotated(q, at), _rotated(k, at)
        keys, values = (
            lax.dynamic_update_slice(old, new, (0, 0, at, 0)) for old, new in zip(cache, (k, v), strict=True)
        )
        scores = jnp.einsum("bghk,bgtk->bght", q * width**-0.5, keys).astype(jnp.float32)
        seen = jnp.arange(keys.shape[2]) <= at
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1).astype(values.dtype)
        mixed = jnp.einsum("bght,bgtk->bghk", weights, values)
        return mixed.reshape(len(qkv), self.heads * width), (keys, values)


def _norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def _turned(at: Any, pairs: int) -> tuple[Any, Any]:
    angles = at * jnp.exp(jnp.arange(pairs) * (-math.log(10_000.0) / pairs))
    return jnp.sin(angles), jnp.cos(angles)


def _rotated(x: Any, at: Any) -> Any:
    half = x.shape[-1] // 2
    sine, cosine = (part.astype(x.dtype) for part in _turned(at, half))
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def decoder_like(config: Any) -> PlainDecoder:
    """The same as a `meshax` configuration, or an error where that has what nobody wrote by hand."""
    groups = {"kv_heads": (config.kv_heads,), "gated": (True,), "positions": ("rotary",), "activation": ("silu",)}
    check_parts(config, groups, free=_OF_TRAINING)
    names = ("d_model", "heads", "d_kv", "d_ff", "layers", "vocab", "activation", "gated", "positions", "dtype")
    return PlainDecoder(kv_heads=config.kv_heads or config.heads, **{name: getattr(config, name) for name in names})


def of_model(model: Any) -> dict[str, Any]:
    """Parameters of a `meshax` decoder with unrolled layers, as this program has them."""

    def layer(one: Any) -> dict[str, Any]:
        attention, feed_forward = one.attention, one.feed_forward
        width = one.attention_norm.scale.array.size
        into = [feed_forward.into] if feed_forward.gate is None else [feed_forward.into, feed_forward.gate]
        joined = [
            jnp.concatenate([part.weight.array.reshape(width, -1) for part in parts], -1)
            for parts in ((attention.q, attention.k, attention.v), into)
        ]
        return {
            "norm1": one.attention_norm.scale.array,
            "qkv": joined[0],
            "o": attention.out.weight.array.reshape(-1, width),
            "norm2": one.feed_forward_norm.scale.array,
            "wi": joined[1],
            "wo": feed_forward.out.weight.array,
        }

    return {
        "embedding": model.embedding.weight.array,
        "layers": [layer(one) for one in model.layers],
        "norm": model.norm.scale.array,
        "logits": model.logits.weight.array,
    }
