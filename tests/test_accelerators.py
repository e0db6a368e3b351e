"""The same programs on a GPU, and compiled for TPUs: `make test-gpu`, `make test-tpu`."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoder
import meshax as mx
from meshax import nn
from meshax.models.decoder import DecoderConfig
from meshax.optim import by_name, clipped
from meshax.plan.compile.hlo import compiled_by_kind, compiled_collectives
from meshax.plan.compile.overlap import overlapping
from meshax.plan.search.named_layouts import find_layout
from meshax.train.examples import batch_shapes
from meshax.train.step import compiler_options
from meshax.train.step_memory import step_and_shapes

LAYOUTS = [
    mx.Layout("batch:data heads:model d_ff:model vocab:model"),
    mx.Layout("batch:data heads:model d_ff:model vocab:model length:model"),
    mx.Layout("batch:data", params="d_model:data"),
]


def packed(config, batch, length):
    """The shapes of a batch as a run has it."""
    return batch_shapes(config, {"batch": batch, "length": length})


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_decoder_trains_on_gpus(layout):
    mesh = mx.Mesh("data:-1 model:1")
    assert mesh.platform == "gpu"
    w, batch = decoder.init(), decoder.tokens()
    program = mx.spmd(decoder.sgd, mesh, layout)
    for _ in range(3):
        wanted_w, wanted = decoder.sgd(w, *batch)
        w, loss = program(w, *batch)
        np.testing.assert_allclose(float(loss), float(wanted), rtol=1e-3)  # matrix products in TF32
    for got, leaf in zip(jax.tree.leaves(w), jax.tree.leaves(wanted_w)):
        np.testing.assert_allclose(got, leaf, rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("keep", ["nothing", "products", "everything"])
def test_memory_on_gpus_is_near_what_the_compiler_says(keep):
    model = DecoderConfig(d_model=512, heads=8, d_kv=64, d_ff=2048, layers=4, vocab=8192, keep=keep)
    step, args = step_and_shapes(model, clipped(by_name("adamw", 1e-3), 1.0), packed(model, 16, 256))
    mesh = mx.Mesh("data:-1 model:1")
    program = mx.spmd(step, mesh, "batch:data", 0, compiler_options(mesh))
    stats = program.compile(*args).memory_analysis()
    compiled = stats.argument_size_in_bytes + stats.temp_size_in_bytes
    compiled += stats.output_size_in_bytes - stats.alias_size_in_bytes
    assert 0.9 < program.explain(*args).memory["peak"] / compiled < 1.25


@pytest.mark.gpu
def test_random_numbers_on_gpus_equal_jax_random():
    key, dims = jax.random.key(3), mx.dims(batch=7, length=5)
    got = mx.spmd(lambda: mx.random.randint(key, dims, 0, 1000), mx.Mesh("data:-1"), "batch:data")()
    assert (got.numpy() == np.asarray(jax.random.randint(key, (7, 5), 0, 1000))).all()


@pytest.mark.tpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_decoder_compiles_for_a_tpu_that_is_not_there(layout):
    mesh = mx.Mesh("data:2 model:4", topology="tpu v4:2x2x1")
    assert mesh.platform == "tpu" and not mesh.has_devices
    compiled = mx.spmd(decoder.sgd, mesh, layout).compile(decoder.init(), *decoder.tokens())
    assert compiled.memory_analysis().argument_size_in_bytes > 0
    assert "all-reduce" in compiled.as_text()
    with pytest.raises(mx.MeshError, match="no devices to run on"):
        mx.spmd(decoder.sgd, mesh, layout)(decoder.init(), *decoder.tokens())


@pytest.mark.cuda
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_decoder_compiles_for_gpus_that_are_not_there(layout):
    mesh = mx.Mesh("data:2 model:4", topology="gpu h100:8")
    assert mesh.platform == "gpu" and mesh.device_kind.startswith("NVIDIA H100") and not mesh.has_devices
    untried = {"xla_gpu_enable_triton_gemm": False}  # tiles that XLA would try out may not fit
    program = mx.spmd(decoder.sgd, mesh, layout, compiler_options=untried)
    compiled = program.compile(decoder.init(), *decoder.tokens())
    assert compiled.memory_analysis().argument_size_in_bytes > 0 and "all-reduce" in compiled.as_text()
    with pytest.raises(mx.MeshError, match="no devices to run on"):
        mx.spmd(decoder.sgd, mesh, layout)(decoder.init(), *decoder.tokens())


@pytest.mark.cuda
@pytest.mark.parametrize("keep", ["products", "everything"])
def test_loops_on_gpus_compute_no_product_twice(keep):
    """XLA would: a product whose result is kept in a stack, once for that, and once for whoever uses it next."""
    config = DecoderConfig(
        d_model=512, heads=8, d_kv=64, d_ff=2048, layers=5, vocab=1024, keep=keep, layers_as="loop", dtype="bfloat16"
    )
    step, args = step_and_shapes(config, clipped(by_name("adafactor", 0.01), 1.0), packed(config, 16, 256))
    mesh = mx.Mesh("data:1", topology="gpu h200:1")
    flags = compiler_options(mesh)

    def products(flags):
        return mx.spmd(step, mesh, "", 0, flags).compile(*args).as_text().count("__cublas$lt$matmul")

    # queries, keys, values, what joins heads, two of the feed-forward, logits; forward, and twice backward
    assert 0 < products(flags) <= 3 * 7
    fused = flags | {"xla_gpu_enable_dynamic_slice_fusion": True}
    if jax.__version__.startswith("0.10."):
        with pytest.raises(jax.errors.JaxRuntimeError, match="BufferAllocation"):  # its XLA cannot compile that at all
            products(fused)
    else:
        assert products(flags) < products(fused)


@pytest.mark.tpu
def test_a_topology_that_does_not_exist_is_an_error():
    with pytest.raises(mx.MeshError, match="no compiler here for the topology 'tpu v9:1x1'"):
        mx.Mesh("data:2", topology="tpu v9:1x1")


def attention_step(packed):
    def step(layer, x, segments):
        def loss(layer, x, segments):
            return mx.sum(layer(x, segments=segments if packed else None).astype(jnp.float32) ** 2)

        return mx.value_and_grad(loss)(layer, x, segments)

    return step


ATTENTION = mx.dims(batch=8, positions=256, d_model=128, heads=8, d_kv=128)


@pytest.mark.tpu
@pytest.mark.parametrize("packed", [False, True])
def test_attention_on_tpus_is_jaxs_own_kernel_forward_and_backward(packed):
    batch, positions, d_model, heads, d_kv = ATTENTION
    layer = jax.eval_shape(lambda: nn.Attention.init(jax.random.key(0), d_model, heads, d_kv))
    x = mx.Tensor(jax.ShapeDtypeStruct((8, 256, 128), jnp.bfloat16), (batch, positions, d_model))
    segments = mx.Tensor(jax.ShapeDtypeStruct((8, 256), jnp.int32), (batch, positions))
    mesh = mx.Mesh("data:2 model:4", topology="tpu v4:2x2x1")
    compiled = mx.spmd(attention_step(packed), mesh, "batch:data heads:model").compile(layer, x, segments)
    assert compiled.as_text().count("tpu_custom_call") >= 3  # forward, and two for the backward pass


@pytest.mark.tpu
@pytest.mark.parametrize(
    ("topology", "kernels"), [("tpu v2:2x2", False), ("tpu v3:2x2", False), ("tpu v5p:2x2x2", True)]
)
def test_a_training_step_compiles_for_every_generation(topology, kernels):
    """With recomputation, and with JAX's kernel only where the processor can run it."""
    config = DecoderConfig(d_model=128, heads=8, d_kv=128, d_ff=256, layers=2, vocab=256)
    step, args = step_and_shapes(config, clipped(by_name("adafactor", 0.01), 1.0), packed(config, 8, 256))
    mesh = mx.Mesh("data:2 model:4", topology=topology)
    compiled = mx.spmd(step, mesh, find_layout("data+model", mesh), donate=0).compile(*args)
    assert ("tpu_custom_call" in compiled.as_text()) == kernels


@pytest.mark.tpu
def test_gathers_run_beside_products_where_that_is_asked_for():
    """Most of them; what is sent stays the same."""
    config = DecoderConfig(d_model=512, heads=8, d_kv=64, d_ff=2048, layers=2, vocab=1024, keep="nothing")
    step, args = step_and_shapes(config, clipped(by_name("adafactor", 0.01), 1.0), packed(config, 64, 256))
    mesh = mx.Mesh("data:8", topology="tpu v5p:2x2x2")
    layout = find_layout("fsdp", mesh, known=config.glossary, sizes=config.sizes())
    plain, asked = (
        compiled_collectives(mx.spmd(step, mesh, layout, 0, flags).compile(*args).as_text())
        for flags in ({}, overlapping(mesh.platform))
    )
    assert not any(c.is_hidden for c in plain)
    gathers = [c for c in asked if c.kind == "all-gather"]
    assert sum(c.count for c in gathers if c.is_hidden) > sum(c.count for c in gathers) * 2 / 3
    assert compiled_by_kind(asked) == compiled_by_kind(plain)


def compiled_for_eight_cores(config, axes, name, rings=""):
    """The collectives of a training step, where it is asked for that they run beside computation."""
    step, args = step_and_shapes(config, clipped(by_name("adafactor", 0.01), 1.0), packed(config, 64, 256))
    mesh = mx.Mesh(axes, topology="tpu v5p:2x2x2")
    layout = find_layout(name, mesh, known=config.glossary, sizes=config.sizes(), rings=rings)
    compiled = mx.spmd(step, mesh, layout, 0, overlapping(mesh.platform)).compile(*args)
    return compiled_collectives(compiled.as_text())


def amount(collectives, kind, *beside):
    """The bytes of matrices in collectives of a kind, and of those beside some things alone."""
    chosen = [c for c in collectives if c.kind == kind and any(np.prod(shape) > 2**16 for _, shape in c.operands)]
    return sum(c.bytes * c.count for c in chosen if not beside or c.beside in beside)


@pytest.mark.tpu
def test_blocks_travel_beside_products_in_rings():
    """Nearly all of them, where the gathers and reduce-scatters in their place are waited for."""
    config = DecoderConfig(d_model=512, heads=8, d_kv=64, d_ff=2048, layers=2, vocab=1024, keep="nothing")
    without, found = (compiled_for_eight_cores(config, "data:2 model:4", "sequence", rings) for rings in ("", "model"))
    permutes = [c for c in found if c.kind == "permute"]
    hidden = sum(c.count for c in permutes if c.is_hidden)
    every = sum(c.count for c in permutes)
    assert hidden > 0.9 * every and every >= 2 * 4 * 2 * 3  # layers, maps, forward and backward, hops
    scatters = [c for c in without if c.kind == "reduce-scatter"]
    assert len(scatters) > 4 and not any(c.is_hidden for c in scatters)


FOUR_WIDE = DecoderConfig(
    d_model=2048, heads=8, d_kv=128, d_ff=8192, layers=4, vocab=1024, keep="nothing", layers_as="loop"
)


@pytest.mark.tpu
@pytest.mark.parametrize("ahead", [False, True])
def test_gradients_of_stored_parameters_in_rings_wait_for_less(ahead):
    """Else they are an all-reduce that all wait for; in rings half as many bytes travel, beside something."""
    config = replace(FOUR_WIDE, fetch_ahead=ahead)
    plain, ringed = (compiled_for_eight_cores(config, "data:8", "fsdp", rings) for rings in ("", "data"))
    assert amount(plain, "all-reduce", "nothing") == amount(plain, "all-reduce") > amount(ringed, "permute")
    assert amount(ringed, "all-reduce") == 0 and amount(ringed, "all-gather") == amount(plain, "all-gather")
    assert amount(ringed, "permute", "nothing") == 0
    assert amount(ringed, "permute", "products") > amount(ringed, "permute") * (0.4 if ahead else 0.1)


@pytest.mark.tpu
def test_what_a_layer_begins_with_travels_beside_the_one_before():
    """Otherwise one gather of each turn is waited for, forward and backward; what is sent is the same."""
    plain, ahead = (
        compiled_for_eight_cores(replace(FOUR_WIDE, fetch_ahead=ahead), "data:8", "fsdp") for ahead in (False, True)
    )
    waited_for = [amount(found, "all-gather", "nothing") // (2048 * 1024 * 2 // 8) for found in (plain, ahead)]
    assert waited_for[1] < waited_for[0] >= 2 * FOUR_WIDE.layers
    assert amount(ahead, "all-gather") == amount(plain, "all-gather")


@pytest.mark.gpu
@pytest.mark.parametrize(("size", "window", "kernel"), [(64, None, "cudnn"), (256, 100, "cudnn"), (256, None, "ours")])
@pytest.mark.parametrize("packed", [False, True])
def test_attention_on_gpus_is_cudnns_or_ours(packed, size, window, kernel):
    """And gives what a CPU gives, forward and backward; ours is for Hopper."""
    batch, positions, d_model, heads, _ = ATTENTION
    layer = nn.Attention.init(jax.random.key(0), d_model, heads, mx.Dim("d_kv", size), window=window)
    x = mx.random.normal(jax.random.key(1), (batch, positions, d_model)).astype(jnp.bfloat16)
    segments = mx.tensor(np.arange(8 * 256).reshape(8, 256) // 90, (batch, positions)).astype(jnp.int32)
    step, layout = attention_step(packed), "batch:data heads:model"
    program = mx.spmd(step, mx.Mesh("data:-1 model:1"), layout)
    is_hopper = "9.0" in str(jax.devices()[0].compute_capability)
    expected = "short_attention" if kernel == "ours" and is_hopper else "cudnn"
    assert expected in program.compile(layer, x, segments).as_text()
    there = mx.Mesh("data:1 model:1", devices=jax.devices("cpu")[:1])
    given = jax.tree.map(np.asarray, (layer, x, segments))
    value, grads = program(*given)
    wanted, wanted_grads = mx.spmd(step, there, layout)(*given)
    np.testing.assert_allclose(float(value), float(wanted), rtol=2e-2)
    for got, leaf in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted_grads), strict=True):
        got, leaf = np.asarray(got, np.float32), np.asarray(leaf, np.float32)
        np.testing.assert_allclose(got, leaf, atol=5e-2 * float(np.abs(leaf).max()))
