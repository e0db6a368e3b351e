"""The training step of `decoder_meshax.py`, written by hand with `jax.shard_map`: data and tensor parallel.

Every `pcast` stands where a value that is the same on all processors meets one that is not: free forward, one
all-reduce backward. To change the layout is to write another program.
"""
# ruff: noqa: TID251  # calling collectives oneself is what is measured here

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

SPECS = {
    "embedding": P("model"),
    "layers": {
        "norm1": P(),
        "q": P(None, None, "model"),
        "k": P(None, None, "model"),
        "v": P(None, None, "model"),
        "o": P(None, "model"),
        "norm2": P(),
        "wi": P(None, None, "model"),
        "wo": P(None, "model"),
    },
    "norm": P(),
    "logits": P(None, "model"),
}


def norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def layer(x, w):
    h = lax.pcast(norm(x, w["norm1"]), "model", to="varying")
    q = jnp.einsum("bld,dhk->blhk", h, w["q"])
    k = jnp.einsum("bmd,dhk->bmhk", h, w["k"])
    v = jnp.einsum("bmd,dhk->bmhk", h, w["v"])
    scores = jnp.einsum("blhk,bmhk->blhm", q, k) * q.shape[-1] ** -0.5
    visible = jnp.arange(q.shape[1])[:, None, None] >= jnp.arange(k.shape[1])
    attention = jax.nn.softmax(jnp.where(visible, scores, -1e9), axis=-1)
    out = jnp.einsum("blhk,hkd->bld", jnp.einsum("blhm,bmhk->blhk", attention, v), w["o"])
    x = x + lax.psum(out, "model")
    h = lax.pcast(norm(x, w["norm2"]), "model", to="varying")
    h = jax.nn.relu(jnp.einsum("bld,df->blf", h, w["wi"]))
    return x + lax.psum(jnp.einsum("blf,fd->bld", h, w["wo"]), "model")


def cross_entropy(logits, targets, classes):
    """The classes are split over the axis model."""
    top = lax.pmax(lax.stop_gradient(jnp.max(logits, axis=-1)), "model")
    total = lax.psum(jnp.sum(jnp.exp(logits - top[..., None]), axis=-1), "model")
    chosen = lax.psum(jnp.sum(jnp.where(targets[..., None] == classes, logits, 0.0), axis=-1), "model")
    return jnp.log(total) + top - chosen


def loss(w, inputs, targets):
    num_classes = w["embedding"].shape[0]
    classes = lax.axis_index("model") * num_classes + jnp.arange(num_classes)
    hot = (inputs[..., None] == classes).astype(w["embedding"].dtype)
    x = lax.psum(jnp.einsum("blv,vd->bld", hot, w["embedding"]), "model")
    x, _ = lax.scan(lambda x, w: (layer(x, w), None), x, w["layers"])
    h = lax.pcast(norm(x, w["norm"]), "model", to="varying")
    losses = cross_entropy(jnp.einsum("bld,dv->blv", h, w["logits"]), targets, classes)
    return lax.psum(jnp.sum(losses), "data") / (losses.size * lax.axis_size("data"))


def step(w, inputs, targets):
    copies = jax.tree.map(lambda p: lax.pcast(p, "data", to="varying"), w)
    value, grads = jax.value_and_grad(loss)(copies, inputs, targets)
    return jax.tree.map(lambda p, g: p - 0.1 * lax.psum(g, "data"), w, grads), value


def trace(mesh, arguments):
    specs = (SPECS, P("data"), P("data"))
    run = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=(SPECS, P()), check_vma=True)
    return jax.make_jaxpr(run)(*arguments)
