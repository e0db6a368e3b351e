"""How queries, keys and values are brought together: by the best kernel for the place.

On NVIDIA's Hopper kernels of ours over short sequences (`short_attention`), on its GPUs otherwise cuDNN's fused
attention where it can (16-bit numbers; on a described mesh a primitive that stands for it), on TPUs JAX's flash
attention (from v4 on, whole blocks of 128 positions, no window, no prefix), elsewhere products and a softmax. If the
positions are split over a mesh axis, each processor keeps its queries, and keys and values go around in a ring: one
permute a turn, the softmax put together as they pass.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from ..compat import typed_outputs
from ..dim import Dim, show
from ..errors import ShapeError
from ..layout import current
from ..ops import (
    arange,
    broadcast,
    einsum,
    exp,
    full,
    isfinite,
    maximum,
    reshape,
    scan,
    shift,
    softmax,
    transpose,
    where,
    zeros,
)
from ..ops import local as local_
from ..ops import max as max_
from ..ops import sum as sum_
from ..plan.cost.processors import DescribedMesh
from ..sources import operation
from ..tensors import Tensor
from .described_attention import described_attention
from .dropout import Dropout

HIDDEN = -1e9
_BLOCK = 128  # positions that JAX's kernel for TPUs takes at once
_TOO_OLD = ("TPU v2", "TPU v3")  # for that kernel
_HOPPER = re.compile(r"\bG?H(20|100|200|800)\b")  # the GPUs that our kernels are written for
_QUERIES, _MEMORY = "positions", "memory"


@dataclass(frozen=True)
class Visibility:
    """Which keys a query sees."""

    causal: bool
    window: int | None
    segments: Tensor | None
    memory_segments: Tensor | None
    prefix: int = 0  # how many places, the first ones, are seen from all others

    def mask(self, queries: Tensor, keys: Tensor, memory_segments: Tensor | None) -> Tensor | None:
        """Returns what is visible, from the places of queries and keys; None if everything is."""
        parts = []
        if self.causal:
            parts.append(queries >= keys)
        if self.window is not None:
            parts.append(queries - keys < self.window)
        parts = [part | (keys < self.prefix) for part in parts] if self.prefix else parts
        if self.segments is not None and memory_segments is not None:
            parts.append(self.segments == memory_segments)
        for part in parts[1:]:
            parts[0] = parts[0] & part
        return parts[0] if parts else None


@operation
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    d_kv: str,
    length: str,
    visible: Visibility,
    bias: Any = None,
    dropout: Dropout,
    key: Any = None,
    scale: float | None = None,
) -> Tensor:
    """Returns for each query the mean of the values, weighted by how well their keys match.

    Args:
        q: queries, with the dim "positions".
        k: keys.
        v: values.
        d_kv: the dim over which queries and keys match.
        length: the dim of keys and values: "positions" (their own) or "memory".
        visible: which keys a query sees.
        bias: a relative bias, and the positions of queries and keys.
        dropout: of the weights.
        key: for dropout.
        scale: what the products of queries and keys are multiplied by; None: one over the root of their size.
    """
    _check_dims(q, {"keys": k, "values": v, "segments": visible.segments, "memory segments": visible.memory_segments})
    scale = q.dim(d_kv).size ** -0.5 if scale is None else scale
    drops = key is not None and dropout.rate > 0
    if length == _QUERIES:
        parts = _parts(q.dim(_QUERIES))
        if parts > 1 and bias is None and not drops:
            return _ring(q * scale, *_kept_apart(k, v, visible), d_kv, visible, parts)
        k, v = k.rename(positions=_MEMORY), v.rename(positions=_MEMORY)
    kernel = _fused_kernel(q, k, visible) if bias is None else None
    if kernel is not None and drops and _drops_values(q, v, d_kv, dropout):
        v, drops = _with_values_dropped(q, v, d_kv, dropout, key), False
    if kernel is not None and not drops:
        return kernel(q, k, v, d_kv, visible, scale)
    k, v = _kept_apart(k, v, visible)
    scores = match(q * scale, k, d_kv)
    if bias is not None:
        relative, queries_at, keys_at = bias
        scores = scores + relative(queries_at, _as_memory(keys_at))
    seen = visible.mask(arange(q.dim(_QUERIES)), arange(k.dim(_MEMORY)), _as_memory(visible.memory_segments))
    scores = scores if seen is None else where(seen, scores, HIDDEN)
    weights = softmax(scores, over=_MEMORY).astype(v.dtype)
    return transpose(einsum(dropout(weights, key), v, over=_MEMORY), q.dims)


def _drops_values(q: Tensor, v: Tensor, d_kv: str, dropout: Dropout) -> bool:
    """Whether the same weights are dropped for all queries, each head by itself: then values may be, in their place."""
    own = [d for d in q.dims if d.name not in (_QUERIES, d_kv)]
    return _QUERIES in dropout.shared and _MEMORY not in dropout.shared and all(d in v.dims for d in own)


def _with_values_dropped(q: Tensor, v: Tensor, d_kv: str, dropout: Dropout, key: Any) -> Tensor:
    """Returns values of which those are zero whose weights would be dropped: no kernel needs to know of dropout."""
    drawn = [d.name for d in q.dims if d.name not in (_QUERIES, d_kv)]  # in the order of the weights
    return replace(dropout, shared=(*dropout.shared, d_kv))(transpose(v, (*drawn, _MEMORY, d_kv)), key)


def _kept_apart(k: Tensor, v: Tensor, visible: Visibility) -> tuple[Tensor, Tensor]:
    """Returns keys and values of which none that is not finite reaches another document.

    A weight of zero does not keep NaN out of a sum. So such values become zero, and their keys NaN: whoever sees them
    still gets NaN, and a hidden key is not looked at.
    """
    if visible.segments is None:
        return k, v
    is_finite = isfinite(v)
    return where(is_finite, k, jnp.nan), where(is_finite, v, 0.0)


def _check_dims(q: Tensor, others: dict[str, Tensor | None]) -> None:
    known = {*(d.name for d in q.dims), _MEMORY}
    for what, x in others.items():
        extra = [d.name for d in x.dims if d.name not in known] if x is not None else []
        if x is not None and extra:
            raise ShapeError(
                f"the {what} of attention have the dim {extra[0]!r}, which the queries lack.",
                values=f"queries {show(q.dims)}, {what} {show(x.dims)}",
                rule="the result has the dims of the queries.",
                fix=f"give the queries the dim (mx.broadcast), or join it to {_MEMORY!r} (mx.reshape).",
            )


def match(q: Tensor, k: Tensor, d_kv: str) -> Tensor:
    """Returns how well keys match queries, stored as the product yields them.

    In any other order this product and the next would transpose the largest tensor of a layer.
    """
    shared = [d for d in q.dims if d in k.dims and d.name != d_kv]
    rest = [d for x in (q, k) for d in x.dims if d not in shared and d.name != d_kv]
    return einsum(q, k, out=(*shared, *rest)).astype(jnp.float32)


def _as_memory(x: Tensor | None) -> Tensor | None:
    return x.rename(positions=_MEMORY) if x is not None and _QUERIES in [d.name for d in x.dims] else x


def _parts(length: Dim) -> int:
    """Returns over how many processors positions are split, if evenly; 1 otherwise."""
    parts = current().placement((length,)).count(length)
    return parts if length.size % parts == 0 else 1


def _fused_kernel(q: Tensor, k: Tensor, visible: Visibility) -> Callable[..., Tensor] | None:
    """Returns the kernel that takes these, if there is one."""
    if _has_short(q, k, visible):
        return _short
    if _has_cudnn(q):
        return _cudnn
    return _flash if visible.window is None and not visible.prefix and _has_flash(q, k) else None


def _has_cudnn(q: Tensor) -> bool:
    return _platform() == "gpu" and q.dtype in (jnp.bfloat16, jnp.float16) and q.dims[-1].size <= 256


def _has_short(q: Tensor, k: Tensor, visible: Visibility) -> bool:
    """Whether our kernels take these: on Hopper, attention to themselves, with as many heads of keys as of queries."""
    if not on_hopper():
        return False
    from .short_attention import takes

    heads = [[d for d in x.dims if d.name in ("heads", "kv_heads")] for x in (q, k)]
    length = q.dim(_QUERIES).size
    is_plain = visible.causal and visible.window is None and not visible.prefix
    is_own = length == k.dim(_MEMORY).size and visible.segments is visible.memory_segments
    return is_plain and is_own and heads[0] == heads[1] != [] and takes(length, q.dims[-1].size, q.dtype)


def _short(q: Tensor, k: Tensor, v: Tensor, d_kv: str, visible: Visibility, scale: float) -> Tensor:
    """Calls our kernels on the local batch and heads."""
    from .short_attention import short_attention

    heads = [d.name for d in q.dims if d.name in ("heads", "kv_heads")]
    batch = [d.name for d in q.dims if d.name not in (*heads, _QUERIES, d_kv)]
    ordered = [transpose(x, (*batch, n, *heads, d_kv)) for x, n in ((q, _QUERIES), (k, _MEMORY), (v, _MEMORY))]
    segments = (
        [] if visible.segments is None else [broadcast(visible.segments, [*(q.dim(n) for n in batch), q.dim(_QUERIES)])]
    )

    def kernel(q: Any, k: Any, v: Any, *segments: Any) -> Any:
        flat = [x.reshape(math.prod(x.shape[: len(batch)]), x.shape[len(batch)], -1, x.shape[-1]) for x in (q, k, v)]
        ids = segments[0].reshape(flat[0].shape[:2]) if segments else None
        return short_attention(*flat, ids, scale, True).reshape(q.shape)

    operands = (*ordered, *segments)
    return transpose(local_(kernel, *operands, out=ordered[0].dims, splittable=(*batch, *heads)), q.dims)


def _cudnn(q: Tensor, k: Tensor, v: Tensor, d_kv: str, visible: Visibility, scale: float) -> Tensor:
    """Calls cuDNN's fused attention on the local batch and heads; what is not causal goes in as one mask."""
    rest = [d for d in q.dims if d.name not in (_QUERIES, d_kv)]
    heads = [d.name for d in rest if d.name in ("heads", "kv_heads")]
    batch = [d.name for d in rest if d.name not in heads]
    own = [name for name in heads if name in [d.name for d in k.dims]]
    operands = [
        transpose(q, (*batch, _QUERIES, *heads, d_kv)),
        *(transpose(x, (*batch, _MEMORY, *own, d_kv)) for x in (k, v)),
    ]
    is_causal = visible.causal and not visible.prefix  # else it is in the mask
    other = replace(visible, causal=visible.causal and not is_causal)
    seen = other.mask(arange(q.dim(_QUERIES)), arange(k.dim(_MEMORY)), _as_memory(visible.memory_segments))
    if seen is not None:
        shape = (*(d for d in rest if d.name in batch), q.dim(_QUERIES), k.dim(_MEMORY))
        operands.append(broadcast(seen, shape) if any(d in seen.dims for d in shape[:-2]) else seen)

    def fused(q: Any, k: Any, v: Any, *masks: Any) -> Any:
        flat = [x.reshape(math.prod(x.shape[: len(batch)]), x.shape[len(batch)], -1, x.shape[-1]) for x in (q, k, v)]
        mask = masks[0].reshape(-1, 1, *masks[0].shape[-2:]) if masks else None
        if isinstance(current().mesh, DescribedMesh):
            bias = None if mask is None else jnp.where(mask, 0.0, HIDDEN).astype(q.dtype)  # as JAX makes of a mask
            return described_attention(*flat, bias).reshape(q.shape)
        out = jax.nn.dot_product_attention(
            flat[0], flat[1], flat[2], mask=mask, scale=scale, is_causal=is_causal, implementation="cudnn"
        )
        return out.reshape(q.shape)

    return transpose(local_(fused, *operands, out=operands[0].dims, splittable=(*batch, *heads)), q.dims)


def _platform() -> str:
    return current().mesh.platform


def on_hopper() -> bool:
    """Whether the processors are the GPUs that our kernels are written for."""
    return _platform() == "gpu" and bool(_HOPPER.search(current().mesh.device_kind))


def _has_flash(q: Tensor, k: Tensor) -> bool:
    """Whether JAX's kernel takes these: from TPU v4 on, whole blocks, with as many heads of keys as of queries."""
    lengths = (q.dim(_QUERIES).size, k.dim(_MEMORY).size)
    heads = [[d for d in x.dims if d.name in ("heads", "kv_heads")] for x in (q, k)]
    kind = current().mesh.device_kind
    return (
        _platform() == "tpu"
        and not kind.startswith(_TOO_OLD)
        and all(n % _BLOCK == 0 for n in lengths)
        and heads[0] == heads[1] != []
    )


def _flash(q: Tensor, k: Tensor, v: Tensor, d_kv: str, visible: Visibility, scale: float) -> Tensor:
    """Calls JAX's flash attention for TPUs on the local batch and heads."""
    from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention

    heads = [d.name for d in q.dims if d.name in ("heads", "kv_heads")]
    batch = [d.name for d in q.dims if d.name not in (*heads, _QUERIES, d_kv)]
    ordered = [transpose(x, (*batch, *heads, n, d_kv)) for x, n in ((q, _QUERIES), (k, _MEMORY), (v, _MEMORY))]
    segments = [x for x in (visible.segments, _as_memory(visible.memory_segments)) if x is not None]

    def kernel(q: Any, k: Any, v: Any, segments: Any) -> Any:
        flat = [x.reshape(math.prod(x.shape[: len(batch)]), -1, *x.shape[-2:]) for x in (q, k, v)]
        ids = SegmentIds(*(s.reshape(-1, s.shape[-1]) for s in segments)) if segments else None
        return flash_attention(*flat, segment_ids=ids, causal=visible.causal, sm_scale=scale).reshape(q.shape)

    # What is differentiated is traced when this function has long returned: the kernels' outputs need types then too.
    def forward(q: Any, k: Any, v: Any, segments: Any) -> Any:
        with typed_outputs(q):
            return jax.vjp(lambda q, k, v: kernel(q, k, v, segments), q, k, v)

    def backward(pull: Any, cotangent: Any) -> Any:
        with typed_outputs(cotangent):
            return (*pull(cotangent), None)

    typed = jax.custom_vjp(kernel)
    typed.defvjp(forward, backward)

    def call(q: Any, k: Any, v: Any, *segments: Any) -> Any:
        return typed(q, k, v, segments)

    operands = (*ordered, *segments)
    return transpose(local_(call, *operands, out=ordered[0].dims, splittable=(*batch, *heads)), q.dims)


def _ring(q: Tensor, k: Tensor, v: Tensor, d_kv: str, visible: Visibility, parts: int) -> Tensor:
    """Lets keys and values visit every processor; the softmax is kept as its maximum, its sum and the mean so far.

    Positions become [ring, block]: along the ring everything is local, and a turn of the ring is one permute.
    """
    length = q.dim(_QUERIES)
    ring, block = Dim(_QUERIES, parts), Dim("ring_block", length.size // parts)
    keys = Dim("ring_keys", block.size)
    turns = Dim("ring_turns", parts)

    def folded(x: Tensor, inner: Dim) -> Tensor:
        return reshape(x, [d for dim in x.dims for d in ((ring, inner) if dim == length else (dim,))])

    at = folded(arange(length), block)
    asking = folded(q, block)
    segments = None if visible.segments is None else folded(visible.segments, block)
    rule = replace(visible, segments=segments, memory_segments=None)
    statistics = tuple(d for d in asking.dims if d.name != d_kv)
    first = (
        broadcast(full((), -jnp.inf), statistics),
        zeros(statistics),
        broadcast(zeros(()), asking.dims),
        folded(k, keys),
        folded(v, keys),
        folded(arange(length), keys),
        None if visible.memory_segments is None else folded(visible.memory_segments, keys),
    )

    def turn(carry: Any, _: Any) -> Any:
        highest, total, mean, k, v, there, there_segments = carry
        scores = match(asking, k, d_kv)
        seen = rule.mask(at, there, there_segments)
        scores = scores if seen is None else where(seen, scores, HIDDEN)
        now = maximum(highest, max_(scores, keys))
        weights = exp(scores - now)
        kept = exp(highest - now)
        total = total * kept + sum_(weights, keys)
        mixed = einsum(weights.astype(v.dtype), v, over=keys).astype(jnp.float32)
        mean = mean * kept + mixed
        onward = [None if x is None else shift(x, _QUERIES, 1, wrap=True) for x in (k, v, there, there_segments)]
        return (transpose(now, statistics), transpose(total, statistics), transpose(mean, asking.dims), *onward), None

    (_, total, mean, *_), _ = scan(turn, first, over=turns)
    return reshape((mean / total).astype(q.dtype), q.dims)
