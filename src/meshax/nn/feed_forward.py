"""The feed-forward layer of a Transformer, plain or gated."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax

from ..dim import Dims
from ..errors import ArgumentError, did_you_mean
from ..ops import gelu, relu, sigmoid, silu, unstack
from ..sources import operation
from ..tensors import Tensor
from .dropout import Dropout
from .linear import Linear, side_by_side

_PARTS = "parts"  # of a product that stands for two
ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "relu": relu,
    "gelu": gelu,  # by tanh
    "gelu_exact": partial(gelu, approximate=False),
    "silu": silu,
    "sigmoid": sigmoid,
}


class FeedForward(eqx.Module):
    """Two maps with an activation between them; gated, the first has a twin that scales it.

    Communication: a pending sum of the result if the dims between are split.
    """

    into: Linear
    gate: Linear | None
    out: Linear
    dropout: Dropout
    activation: str = eqx.field(static=True)

    @classmethod
    @operation
    def init(
        cls,
        key: Any,
        outer: Dims,
        inner: Dims,
        stack: Dims = (),
        activation: str = "relu",
        gated: bool = False,
        dropout: float = 0.0,
        bias: bool = False,
        dropout_shared: Sequence[str] = (),
    ) -> "FeedForward":
        """Makes one from `outer` to `inner` dims and back, with a bias in every map or in none."""
        if activation not in ACTIVATIONS:
            raise ArgumentError(f"there is no activation {activation!r}.", fix=did_you_mean(activation, ACTIVATIONS))
        keys = jax.random.split(key, 3)
        gate = Linear.init(keys[2], outer, inner, stack, bias=bias) if gated else None
        into = Linear.init(keys[0], outer, inner, stack, bias=bias)
        out = Linear.init(keys[1], inner, outer, stack, bias=bias)
        return cls(into, gate, out, Dropout(dropout, tuple(dropout_shared)), activation)

    @operation
    def __call__(self, x: Tensor, key: Any = None, names: Mapping[str, str] | None = None) -> Tensor:
        """Applies the layer; dims of the result may get other names."""
        into, *gate = unstack(self.into(x), _PARTS) if _PARTS in self.into.after else [self.into(x)]
        gate = gate if self.gate is None else [self.gate(x)]
        inner = math.prod(gate, start=ACTIVATIONS[self.activation](into))
        return self.out(self.dropout(inner, key), names)

    def joined(self) -> "FeedForward":
        """Returns the same layer with one product in place of the first two."""
        if self.gate is None:
            return self
        return replace(self, into=side_by_side((self.into, self.gate), _PARTS), gate=None)
