"""The paper's language model written by hand in JAX, without meshax: what ours is measured beside.

On one device it is the program that someone who knows JAX would write: layers as a list, cuDNN's attention, Adafactor
in a few lines. On many, `jax.jit` divides it (GSPMD): `at` is told the dims of each value and may constrain its
sharding. `of_model` makes its parameters from a model of ours, so that both compute the same.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import ArgumentError

LAYER = {
    "norm1": "d_model",
    "q": "d_model heads d_kv",
    "k": "d_model heads d_kv",
    "v": "d_model heads d_kv",
    "o": "heads d_kv d_model",
    "norm2": "d_model",
    "wi": "d_model d_ff",
    "wo": "d_ff d_model",
}
REMAT: dict[str, Any] = {
    "nothing": None,
    "products": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "everything": "no checkpoint",
}


def dims(layers: int) -> dict[str, Any]:
    """The dims of every parameter."""
    return {
        "embedding": "vocab d_model",
        "layers": [dict(LAYER) for _ in range(layers)],
        "norm": "d_model",
        "logits": "d_model vocab",
    }


def _as_it_is(x: Any, dims: str) -> Any:
    return x


@dataclass(frozen=True)
class Plain:
    """The model: how it computes, and how large it is."""

    d_model: int
    heads: int
    d_kv: int
    d_ff: int
    layers: int
    vocab: int
    dtype: str = "bfloat16"
    attention: Literal["xla", "cudnn"] = "xla"
    keep: str = "everything"
    at: Callable[[Any, str], Any] = _as_it_is

    def init(self, key: Any) -> dict[str, Any]:
        """Makes parameters."""
        keys = iter(jax.random.split(key, 2 + 6 * self.layers))

        def weight(names: str) -> Any:
            shape = [getattr(self, name) for name in names.split()]
            if len(shape) == 1:
                return jnp.ones(shape)
            inputs = {"vocab d_model": 1}.get(names, math.prod(shape[:-1] if names.endswith("d_model") else shape[:1]))
            return jax.random.normal(next(keys), shape) / math.sqrt(inputs)

        parameters: dict[str, Any] = jax.tree.map(weight, dims(self.layers))
        return parameters

    def loss(self, w: dict[str, Any], tokens: Any, targets: Any) -> Any:
        """Returns the mean cross entropy."""
        at, dtype = self.at, jnp.dtype(self.dtype)
        x = at(at(w["embedding"].astype(dtype), "vocab d_model")[tokens], "batch length d_model")
        x = x + _sinusoids(tokens.shape[1], self.d_model).astype(dtype)
        layer = self._layer
        if self.keep != "everything":
            layer = jax.checkpoint(layer, policy=REMAT[self.keep])
        for one in w["layers"]:
            x = layer(x, one)
        logits = jnp.einsum("bld,dv->blv", _norm(x, w["norm"]), w["logits"].astype(dtype))
        logits = at(logits, "batch positions vocab").astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)

    def _layer(self, x: Any, w: dict[str, Any]) -> Any:
        at, dtype = self.at, x.dtype
        h = at(_norm(x, w["norm1"]), "batch positions d_model")
        q, k, v = (
            at(jnp.einsum("bld,dhk->blhk", h, w[name].astype(dtype)), "batch positions heads d_kv") for name in "qkv"
        )
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=self.attention)
        mixed = at(mixed, "batch positions heads d_kv")
        x = at(x + jnp.einsum("blhk,hkd->bld", mixed, w["o"].astype(dtype)), "batch length d_model")
        h = at(_norm(x, w["norm2"]), "batch positions d_model")
        h = at(jax.nn.relu(jnp.einsum("bld,df->blf", h, w["wi"].astype(dtype))), "batch positions d_ff")
        return at(x + jnp.einsum("blf,fd->bld", h, w["wo"].astype(dtype)), "batch length d_model")


def _norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def _sinusoids(length: int, width: int) -> Any:
    frequencies = jnp.exp(jnp.arange(width // 2) * (-math.log(10_000.0) / (width // 2)))
    angles = jnp.arange(length)[:, None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


def of_model(model: Any) -> dict[str, Any]:
    """Parameters of a `meshax` decoder, looped or unrolled, as this program has them."""
    is_stack = not isinstance(model.layers, tuple)

    def layer(number: int) -> dict[str, Any]:
        one = model.layers if is_stack else model.layers[number]
        parts = {
            "norm1": one.attention_norm.scale,
            "q": one.attention.q.weight,
            "k": one.attention.k.weight,
            "v": one.attention.v.weight,
            "o": one.attention.out.weight,
            "norm2": one.feed_forward_norm.scale,
            "wi": one.feed_forward.into.weight,
            "wo": one.feed_forward.out.weight,
        }
        return {name: x.array[number] if is_stack else x.array for name, x in parts.items()}

    return {
        "embedding": model.embedding.weight.array,
        "layers": [layer(number) for number in range(model.config.layers)],
        "norm": model.norm.scale.array,
        "logits": model.logits.weight.array,
    }


def adafactor_state(w: Any) -> Any:
    """Two means of squares for each large matrix, one square for each element of others."""

    def first(p: Any) -> tuple[Any, ...]:
        if (factored := _largest_two(p.shape)) is None:
            return (jnp.zeros(p.shape),)
        rows, cols = factored
        shapes = [tuple(n for j, n in enumerate(p.shape) if j != i) for i in (rows, cols)]
        return tuple(map(jnp.zeros, shapes))

    return jax.tree.map(first, w)


def _largest_two(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The dims that moments are factored over; None, if they are too small to be worth it."""
    order = sorted(range(len(shape)), key=lambda i: shape[i])
    return (order[-1], order[-2]) if len(order) > 1 and shape[order[-2]] >= 128 else None


def adafactor(w: Any, grads: Any, state: Any, step: Any, rate: float = 0.01) -> tuple[Any, Any]:
    """One update: factored second moments, relative to the size of a parameter, its root mean square at most one."""
    decay = 1 - (step + 1.0) ** -0.8

    def update(p: Any, g: Any, s: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        squares = g * g + 1e-30
        if (factored := _largest_two(p.shape)) is None:
            new: tuple[Any, ...] = (decay * s[0] + (1 - decay) * squares,)
            u = g * lax.rsqrt(new[0])
        else:
            rows, cols = factored
            new = tuple(decay * old + (1 - decay) * squares.mean(i) for old, i in zip(s, (rows, cols), strict=True))
            mean = new[0].mean(cols - (rows < cols), keepdims=True)
            u = g * jnp.expand_dims(lax.rsqrt(new[0] / mean), rows) * jnp.expand_dims(lax.rsqrt(new[1]), cols)
        size = jnp.maximum(jnp.sqrt(jnp.mean(p * p)), 1e-3)
        return p - rate * size / jnp.maximum(jnp.sqrt(jnp.mean(u * u)), 1.0) * u, new

    leaves = jax.tree.leaves(w)
    tree: Any = jax.tree.structure(w)
    pairs = [
        update(p, g.astype(jnp.float32), s)
        for p, g, s in zip(leaves, tree.flatten_up_to(grads), tree.flatten_up_to(state), strict=True)
    ]
    return tree.unflatten([p for p, _ in pairs]), tree.unflatten([s for _, s in pairs])


def clipped(grads: Any, limit: float = 1.0) -> Any:
    """The gradients, scaled down to a global norm of at most the limit."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(jnp.float32))) for g in jax.tree.leaves(grads)))
    return jax.tree.map(lambda g: g * jnp.where(norm < limit, 1.0, limit / norm), grads)


def train_step(model: Plain) -> Callable[..., Any]:
    """A step of training with Adafactor and clipping, to be jitted with its first two arguments donated."""

    def step(w: Any, state: Any, number: Any, tokens: Any, targets: Any) -> tuple[Any, Any, Any]:
        value, grads = jax.value_and_grad(model.loss)(w, tokens, targets)
        with jax.named_scope("optimizer"):
            w, state = adafactor(w, clipped(grads), state, number)
        return w, state, value

    return step


_SIZES = ("d_model", "heads", "d_kv", "d_ff", "layers", "vocab", "dtype")
# What changes no number that a program computes, if positions are not learned and nothing is dropped.
_FREE = ("keep", "layers_as", "fetch_ahead", "max_length", "dropout_shared")


def like(config: Any, **options: Any) -> Plain:
    """The same model as a `meshax` configuration's, or an error where that has what nobody wrote by hand."""
    check_parts(config, {"kv_heads": (config.heads,)})
    return Plain(**{name: getattr(config, name) for name in _SIZES}, **options)


def check_parts(config: Any, known: Mapping[str, tuple[Any, ...]], free: Sequence[str] = ()) -> None:
    """Raises if a configuration has other parts than the usual ones, and those that are known."""
    others = [
        field.name
        for field in fields(config)
        if field.name not in (*_SIZES, *_FREE, *free)
        and getattr(config, field.name) not in (field.default, *known.get(field.name, ()))
    ]
    if others:
        raise ArgumentError(
            "no program by hand has such parts.",
            values=", ".join(f"{name} {getattr(config, name)}" for name in others),
            fix="choose a preset of the paper's, or parts as there (positions sinusoidal), or leave out the others.",
        )
