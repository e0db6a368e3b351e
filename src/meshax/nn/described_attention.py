"""cuDNN's attention where there is no cuDNN: kernels that a program of a described mesh is traced with, and never runs.

JAX asks for the library when its own function is traced. Products and a softmax could be traced in its place, but keep
scores in memory, which is what the kernels are there to avoid. So there are primitives with the names of JAX's, and
with their operands and results: whoever reads the trace prices them alike.
"""

from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

from ..plan.reading.primitives import CUDNN_BACKWARD, CUDNN_FORWARD

_forward_kernel, _backward_kernel = (jax.extend.core.Primitive(name) for name in (CUDNN_FORWARD, CUDNN_BACKWARD))
_forward_kernel.multiple_results = _backward_kernel.multiple_results = True


@_forward_kernel.def_abstract_eval
def _results(q: Any, *_: Any) -> Any:
    batch, length, heads, _ = q.shape
    return q, q.update(shape=(batch, heads, length, 1), dtype=jnp.dtype(jnp.float32))  # of each query's scores: one


@_backward_kernel.def_abstract_eval
def _gradients(q: Any, k: Any, v: Any, *_: Any) -> Any:
    return q, k, v


@jax.custom_vjp
def described_attention(q: Any, k: Any, v: Any, bias: Any) -> jax.Array:
    """Stands for cuDNN's attention.

    Args:
        q: queries, [batch, length, heads, d].
        k: keys, [batch, memory, heads of keys, d].
        v: values, likewise.
        bias: what is added to the scores, [batch or 1, 1, length, memory], or None.
    """
    return _forward(q, k, v, bias)[0]


def _forward(q: Any, k: Any, v: Any, bias: Any) -> Any:
    out, logs = _forward_kernel.bind(q, k, v, *([] if bias is None else [bias]))
    return out, (q, k, v, bias, out, logs)


def _backward(kept: Any, cotangent: Any) -> Any:
    bias = kept[3]
    gradients = _backward_kernel.bind(*(x for x in kept if x is not None), cotangent)
    return (*gradients, None if bias is None else jnp.zeros_like(bias))


described_attention.defvjp(_forward, _backward)
