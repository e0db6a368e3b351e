"""Causal attention over short sequences on one GPU: the kernels there are, forward, and forward and backward.

Queries, keys and values come as the products of a model yield them, [batch, length, heads, d]; a kernel that wants them
in another order pays for the transpositions, but for the row "in its own order", which begins and ends in that order.

    python benchmarks/attention.py                                   # lm-4.90b, 32 x 256 tokens
    python benchmarks/attention.py --heads 64 --batch 64             # lm-1.28b
    python benchmarks/attention.py --only ours cuDNN                 # two of the kernels
"""

import argparse
import math
import statistics
import time

import jax
import jax.numpy as jnp

BANDWIDTH = 4.8e12  # bytes a second, of an H200


def ours(q, k, v):
    from meshax.nn.short_attention import short_attention

    return short_attention(q, k, v, None, q.shape[-1] ** -0.5, True)


def cudnn(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")


def cudnn_of_heads(q, k, v):
    """Each head of each example an example of its own: for arrays that lie so, [batch * heads, length, 1, d]."""
    flat = [x.swapaxes(1, 2).reshape(-1, x.shape[1], 1, x.shape[3]) for x in (q, k, v)]
    return cudnn(*flat).reshape(q.shape[0], q.shape[2], *q.shape[1::2]).swapaxes(1, 2)


def products(scores_in):
    def attend(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k, preferred_element_type=scores_in)
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9).astype(jnp.float32)).astype(v.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

    return attend


def pallas_triton(block):
    def attend(q, k, v):
        from jax.experimental.pallas.ops.gpu import attention

        sizes = attention.BlockSizes(
            block_q=block, block_k=block,
            block_q_dkv=min(block, 32), block_kv_dkv=min(block, 32),
            block_q_dq=min(block, 32), block_kv_dq=min(block, 32),
        )  # fmt: skip
        return attention.mha(q, k, v, None, sm_scale=q.shape[-1] ** -0.5, causal=True, block_sizes=sizes)

    return attend


def milliseconds(fn, *args, rounds=5, calls=5):
    compiled = jax.jit(fn).lower(*args).compile()
    jax.block_until_ready(compiled(*args))
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            out = compiled(*args)
        jax.block_until_ready(out)
        times.append((time.perf_counter() - begin) / calls * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in dict(batch=32, length=256, heads=256, d=256).items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--only", nargs="+", help="the first words of the kernels to measure")
    sizes = parser.parse_args()
    if jax.default_backend() != "gpu":
        parser.error("these kernels need a GPU")
    shape = (sizes.batch, sizes.length, sizes.heads, sizes.d)
    of_heads = (sizes.batch * sizes.heads, sizes.length, 1, sizes.d)
    drawn = [jax.random.normal(key, shape, jnp.bfloat16) for key in jax.random.split(jax.random.key(0), 4)]
    kernels = {
        "ours": (ours, shape),
        "cuDNN": (cudnn, shape),
        "cuDNN, each head an example": (cudnn_of_heads, shape),
        "cuDNN, each head an example, in its own order": (cudnn, of_heads),
        "products, scores in bfloat16": (products(jnp.bfloat16), shape),
        "products, scores in float32": (products(jnp.float32), shape),
        "Pallas (JAX's, Triton), blocks of 64": (pallas_triton(64), shape),
        "Pallas (JAX's, Triton), blocks of 32": (pallas_triton(32), shape),
    }
    # Forward reads q, k, v and writes one; backward reads those four and the gradient, and writes three.
    floor = [math.prod(shape) * 2 * passes / BANDWIDTH * 1e3 for passes in (4, 12)]
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, bfloat16, [batch, length, heads, d] = {shape}\n")
    print("| kernel | forward, ms | forward and backward, ms | largest difference to cuDNN |\n|---|---|---|---|")
    print(f"| reading and writing once, at {BANDWIDTH / 1e12} TB/s | {floor[0]:.2f} | {floor[1]:.2f} | |")
    expected = cudnn(*drawn[:3])
    chosen = {n: k for n, k in kernels.items() if not sizes.only or n.split(",")[0] in sizes.only}
    for name, (attend, order) in chosen.items():
        q, k, v, ct = (x.reshape(order) for x in drawn)

        def both(q, k, v, ct, attend=attend):
            out, back = jax.vjp(attend, q, k, v)
            return out, back(ct)

        try:
            difference = "" if order != shape else f"{jnp.max(jnp.abs(attend(q, k, v) - expected)):.3g}"
            times = milliseconds(attend, q, k, v), milliseconds(both, q, k, v, ct)
            print(f"| {name} | {times[0]:.2f} | {times[1]:.2f} | {difference} |", flush=True)
        except Exception as error:  # a kernel may be missing, or refuse these sizes
            print(f"| {name} | | | {type(error).__name__}: {str(error).splitlines()[0][:80]} |", flush=True)


if __name__ == "__main__":
    main()
