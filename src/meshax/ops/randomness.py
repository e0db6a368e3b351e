"""Random numbers that do not depend on the layout.

Threefry is counter-based: the bits of an element follow from the key and the element's place in the whole tensor. Each
processor computes those of its own slice, and `jax.random`'s own samplers turn them into numbers: the same, bit for
bit, as `jax.random` gives for the whole array. Exported as `mx.random`.
"""

import math
from functools import cache
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from .. import collectives
from ..compat import Array
from ..dim import Dim, DimLike, DimsLike, find, show, sizes
from ..errors import ArgumentError, DtypeError
from ..layout import Placement, current
from ..sources import name_operations
from ..tensors import Tensor, check_tensor
from ..transfer import along
from .creation import one_sized_dim, places_fit, sized_dims
from .elementwise import where
from .reduction import argmax
from .resharding import placed

__all__ = [
    "bernoulli", "categorical", "dropout", "exponential", "gumbel", "normal", "permutation", "randint",
    "truncated_normal", "uniform",
]  # fmt: skip

_THREEFRY = "threefry2x32"


def normal(key: Array, dims: DimsLike, dtype: Any = jnp.float32) -> Tensor:
    """Draws from the standard normal distribution.

    Communication: none.
    """
    return _draw("normal", key, dims, dtype=dtype)


def uniform(key: Array, dims: DimsLike, low: float = 0.0, high: float = 1.0, dtype: Any = jnp.float32) -> Tensor:
    """Draws evenly from [low, high).

    Communication: none.
    """
    return _draw("uniform", key, dims, dtype=dtype, minval=low, maxval=high)


def truncated_normal(
    key: Array, dims: DimsLike, low: float = -2.0, high: float = 2.0, dtype: Any = jnp.float32
) -> Tensor:
    """Draws from the standard normal distribution, cut off outside [low, high].

    Communication: none.
    """
    return _draw("truncated_normal", key, dims, dtype=dtype, lower=low, upper=high)


def gumbel(key: Array, dims: DimsLike, dtype: Any = jnp.float32) -> Tensor:
    """Draws from the standard Gumbel distribution.

    Communication: none.
    """
    return _draw("gumbel", key, dims, dtype=dtype)


def exponential(key: Array, dims: DimsLike, dtype: Any = jnp.float32) -> Tensor:
    """Draws from the exponential distribution of rate one.

    Communication: none.
    """
    return _draw("exponential", key, dims, dtype=dtype)


def bernoulli(key: Array, dims: DimsLike, p: float = 0.5) -> Tensor:
    """Draws true with probability p.

    Communication: none.
    """
    return _draw("bernoulli", key, dims, p=p)


def randint(key: Array, dims: DimsLike, low: int, high: int, dtype: Any = jnp.int32) -> Tensor:
    """Draws integers evenly from [low, high).

    Communication: none.
    """
    return _draw("randint", key, dims, dtype=dtype, minval=low, maxval=high)


def dropout(key: Array, x: Tensor, rate: float) -> Tensor:
    """Sets a share of the elements to zero, and scales the others to keep the mean.

    Communication: none; a pending sum is reduced first.
    """
    check_tensor(x, "mx.random.dropout")
    if not 0 <= rate < 1:
        raise ArgumentError(f"a dropout rate is at least 0 and less than 1, not {rate}.", fix="for example 0.1.")
    if rate == 0:
        return x
    return where(bernoulli(key, x.dims, 1 - rate), x / (1 - rate), 0.0)


def categorical(key: Array, logits: Tensor, over: DimLike) -> Tensor:
    """Draws a place (int32) along a dim, with the probabilities of the softmax over it.

    Communication: as `mx.argmax`.
    """
    if not jnp.issubdtype(check_tensor(logits, "mx.random.categorical").dtype, jnp.floating):
        raise DtypeError(
            f"logits are floating numbers, not {logits.dtype}.", values=show(logits.dims), fix="cast them with .astype."
        )
    places_fit(find(logits.dims, over), "random.categorical")
    return argmax(logits + gumbel(key, logits.dims, logits.dtype), over)


def permutation(key: Array, dim: Dim) -> Tensor:
    """Returns the places (int32) along a dim in random order.

    Communication: none: every processor draws the whole permutation.
    """
    dim = places_fit(one_sized_dim(dim, "random.permutation"), "random.permutation")
    order = jax.random.permutation(_checked(key), jnp.arange(dim.size, dtype=jnp.int32))
    return placed(order, current().whole((dim,)), None)


def _draw(sampler: str, key: Array, dims: DimsLike, **options: Any) -> Tensor:
    shape = sized_dims(dims, f"random.{sampler}")
    key, placement = _checked(key), current().placement(shape)
    if placement.axes:
        key = _slice_key(key, placement)
    drawn = getattr(jax.random, sampler)(key, shape=placement.local_shape, **options)
    return Tensor(checkpoint_name(drawn, "drawn"), shape)  # a policy may keep it: to draw it again takes long


def _checked(key: Array) -> Array:
    if not getattr(jax.config, "jax_threefry_partitionable"):  # noqa: B009  # made at run time
        raise DtypeError(
            "random numbers would depend on the layout.",
            rule="only partitionable threefry keys give each processor the numbers of its own slice.",
            fix='jax.config.update("jax_threefry_partitionable", True).',
        )
    if isinstance(key, jax.Array) and key.dtype == jnp.uint32 and key.shape == (2,):
        return jax.random.wrap_key_data(key, impl=_THREEFRY)
    is_key = isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not is_key or key.shape or str(jax.random.key_impl(key)) != _THREEFRY:
        kind = f"a {jax.random.key_impl(key)} key of shape {key.shape}" if is_key else type(key).__name__
        raise DtypeError(
            f"mx.random takes one threefry key, not {kind}.",
            rule="only partitionable threefry keys give each processor the numbers of its own slice.",
            fix="make it with jax.random.key(seed), and split it with jax.random.split.",
        )
    return key


def _slice_key(key: Array, placement: Placement) -> Array:
    """Returns a key whose bits are those of this processor's slice: it holds the block's number along each dim."""
    number = [collectives.processor_index(split) if split else jnp.int32(0) for split in placement]
    data = jnp.concatenate([jax.random.key_data(key), jnp.stack(number).astype(jnp.uint32)])
    generator = _slice_generator(sizes(placement.dims), placement.local_shape)
    return jax.random.wrap_key_data(collectives.to_copies(data, placement.axes), impl=generator)


@cache
def _slice_generator(whole: tuple[int, ...], local: tuple[int, ...]) -> Any:
    def plain(data: Array) -> Array:
        return jax.random.wrap_key_data(data[:2], impl=_THREEFRY)

    def random_bits(data: Array, width: int, shape: tuple[int, ...]) -> Array:
        assert tuple(shape) == local, f"a sampler draws {shape}, not the slice {local}"
        high, low = _places(data[2:], whole, local)
        first, second = (jnp.broadcast_to(half, local) for half in (data[0], data[1]))
        one, two = jax.extend.random.threefry2x32_p.bind(first, second, high, low)
        if width == 64:
            return one.astype(jnp.uint64) << jnp.uint64(32) | two.astype(jnp.uint64)
        return (one ^ two).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])

    def split(data: Array, shape: tuple[int, ...]) -> Array:
        keys = jax.random.key_data(jax.random.split(plain(data), shape))
        return jnp.concatenate([keys, jnp.broadcast_to(data[2:], (*shape, len(whole)))], axis=-1)

    def fold_in(data: Array, number: Array) -> Array:
        return jnp.concatenate([jax.random.key_data(jax.random.fold_in(plain(data), number)), data[2:]])

    def seed(_: Array) -> Array:
        raise AssertionError("a slice's key is made from a whole tensor's key")

    name = f"slice of {'x'.join(map(str, whole))} in {'x'.join(map(str, local))}"
    functions: dict[str, Any] = {"seed": seed, "split": split, "random_bits": random_bits, "fold_in": fold_in}
    return jax.extend.random.define_prng_impl(key_shape=(2 + len(whole),), name=name, tag=name, **functions)


def _places(blocks: Array, whole: tuple[int, ...], local: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns the place of each element of a slice in the whole array, as the high and low halves of 64 bits."""
    high = low = jnp.zeros(local, jnp.uint32)
    is_long = math.prod(whole) > 2**32
    for position, block in enumerate(local):
        stride = math.prod(whole[position + 1 :])
        within = along(jnp.arange(block, dtype=jnp.uint32), position, len(local))
        for number, step in ((blocks[position], stride * block), (within, stride)):
            step_high, step_low = _product(number, step) if is_long else (0, number * jnp.uint32(step % 2**32))
            total = low + step_low
            high = high + step_high + (total < low).astype(jnp.uint32)
            low = total
    return high, low


def _product(number: Array, stride: int) -> tuple[Array, Array]:
    """Multiplies 32-bit numbers by a constant into the halves of 64 bits, by 16-bit limbs."""
    limb = lambda value: jnp.uint32(value & 0xFFFF)  # noqa: E731
    low, high, half = number & 0xFFFF, number >> 16, jnp.uint32(16)
    first, second = limb(stride), limb(stride >> 16)
    bottom = low * first
    middle = low * second + (bottom >> half)
    other = high * first + (middle & 0xFFFF)
    top = high * second + (middle >> half) + (other >> half) + number * jnp.uint32((stride >> 32) & 0xFFFFFFFF)
    return top, (other << half) | (bottom & 0xFFFF)


name_operations(globals(), __all__)
