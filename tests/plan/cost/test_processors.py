"""Meshes of hardware that is not there: what they answer, and that programs are traced as that hardware runs them."""

import jax
import jax.numpy as jnp
import pytest

import meshax as mx
from meshax import nn
from meshax.models.presets import preset
from meshax.plan.cost.hardware import KNOWN, find
from meshax.plan.cost.processors import DescribedMesh, assuming, chosen_platform, described
from meshax.plan.explain.report import explain

batch, heads, d_model, d_kv = mx.dims(batch=4, heads=4, d_model=32, d_kv=256)
SHORT, CUDNN, FLASH = "short_attention_forward", "dot_product_attention_fwd_wrapper", "pallas_call"


def attention(length, **options):
    """Returns a loss with its gradient, and the shapes of its arguments."""
    positions = mx.Dim("positions", length)
    x = mx.tensor(jax.ShapeDtypeStruct((batch.size, length, d_model.size), jnp.bfloat16), (batch, positions, d_model))

    def step(x):
        layer = nn.Attention.init(jax.random.key(0), d_model, heads, d_kv, **options)
        return mx.value_and_grad(lambda layer: mx.sum(layer(x).astype(jnp.float32)))(layer)

    return step, x


def kernels_of(report):
    """Returns the kernels of attention in a report, by name, in order."""
    named = [(k.step.params.get("name") if k.step.name == "mpmd_map" else k.step.name, k) for k in report.kernels.all()]
    return [(name, k) for name, k in named if k.flops and name not in ("dot_general", None)]


@pytest.mark.parametrize("name", KNOWN)
def test_it_answers_as_the_hardware(name):
    mesh = DescribedMesh("data:2 model:4", find(name))
    assert (mesh.platform, mesh.device_kind) == (KNOWN[name].platform, KNOWN[name].kind)
    assert mesh.platform in ("cpu", "gpu", "tpu") and mesh.device_kind
    assert mesh.is_abstract and not mesh.has_devices and mesh.size == 8


def test_meshes_of_other_hardware_are_others():
    """JAX remembers traces by their mesh: what was traced for one must not be shown for another."""
    plain, one, again, other = (
        mx.Mesh("x:2", abstract=True),
        *(DescribedMesh("x:2", find(name)) for name in ("h200", "h200x4@100GB/s", "h100")),
    )
    assert one == again and hash(one) == hash(again)
    assert one != plain and plain != one and one != other
    assert one != DescribedMesh("x:4", find("h200"))


@pytest.mark.parametrize(
    ("hardware", "length", "options", "wanted"),
    [
        ("h200", 256, {}, SHORT),
        ("h100x8@400Gbit/s", 256, {}, SHORT),
        ("h200", 512, {}, CUDNN),
        ("h200", 256, {"window": 100}, CUDNN),
        ("a100", 256, {}, CUDNN),
        ("b200", 256, {"kv_heads": 2}, CUDNN),
        ("tpu-v5e", 256, {}, FLASH),
        ("tpu-v5e", 250, {}, None),
        ("tpu-v2", 256, {}, None),
        ("cpu", 256, {}, None),
    ],
)
@pytest.mark.parametrize("layout", ["", "batch:data heads:model"])
def test_attention_is_by_the_kernels_of_the_hardware(hardware, length, options, wanted, layout):
    """Forward two products, backward five; those of TPUs compute scores and weights twice more."""
    step, x = attention(length, **options)
    mesh = DescribedMesh("data:2 model:2", find(hardware))
    kernels = kernels_of(explain(mx.spmd(step, mesh, layout), x))

    product = 2 * batch.size * heads.size * length**2 * d_kv.size // (4 if layout else 1)
    if wanted == FLASH:
        (first, *rest) = [k.flops for _, k in kernels]
        assert first == pytest.approx(2 * product, rel=0.05)  # JAX counts the softmax too
        assert rest == [4 * product, 3 * product]
    elif wanted:
        names = [wanted, wanted.replace("forward", "backward").replace("fwd", "bwd")]
        assert [name for name, _ in kernels] == names
        assert [k.flops for _, k in kernels] == [2 * product, 5 * product]
    else:
        assert kernels == []


def test_one_function_is_traced_anew_for_other_hardware():
    step, x = attention(256)
    programs = {name: mx.spmd(step, DescribedMesh("x:1", find(name)), "") for name in ("h200", "a100", "cpu")}
    names = {hardware: kernels_of(explain(program, x))[:1] for hardware, program in programs.items()}
    assert [one[0] for one in names["h200"] + names["a100"]] == [SHORT, CUDNN] and names["cpu"] == []


def has_scores(report):
    return any(value.shape[-2:] == (512, 512) for kernel in report.kernels.all() for value in kernel.writes)


def test_kernels_keep_no_scores():
    """The stand-in of cuDNN's reads and writes what cuDNN does, and a mask where there is one."""
    step, x = attention(512)
    fused, products = (explain(mx.spmd(step, DescribedMesh("x:1", find(name)), ""), x) for name in ("h200", "tpu-v2"))
    one = batch.size * heads.size * 512
    logs = 4 * one
    (_, forward), (_, backward) = kernels_of(fused)
    assert forward.bytes == 4 * one * d_kv.size * 2 + logs
    assert backward.bytes == 8 * one * d_kv.size * 2 + logs
    assert not has_scores(fused) and has_scores(products)

    masked, x = attention(512, window=100)
    (_, forward), (_, backward) = kernels_of(explain(mx.spmd(masked, DescribedMesh("x:1", find("h200")), ""), x))
    assert forward.bytes == 4 * one * d_kv.size * 2 + logs + 512 * 512 * 2
    assert backward.bytes == 8 * one * d_kv.size * 2 + logs + 512 * 512 * 2


def test_split_positions_go_around_in_a_ring():
    step, x = attention(256)
    report = explain(mx.spmd(step, DescribedMesh("x:2", find("h200")), "positions:x"), x)
    assert "permute" in {c.kind for c in report.collectives} and kernels_of(report) == []


def test_models_are_made_as_for_the_hardware():
    config = preset("lm-0.14b").model
    for name, platform, is_unrolled in (("h200", "gpu", True), ("tpu-v2", "tpu", False), ("cpu", "cpu", False)):
        with assuming(find(name)):
            assert chosen_platform() == platform
            assert isinstance(jax.eval_shape(config.make, jax.random.key(0)).layers, tuple) == is_unrolled
        made = mx.spmd(lambda: config.make(jax.random.key(0)), DescribedMesh("x:2", find(name)), "").trace().results
        assert isinstance(made.layers, tuple) == is_unrolled
    assert chosen_platform() == jax.default_backend()


def test_an_abstract_mesh_can_be_described_later():
    plain = mx.Mesh("rows:4 cols:2", abstract=True, across="cols")
    mesh = described(plain, find("h200"))
    assert (mesh.axes, mesh.order, mesh.device_kind) == (plain.axes, ("cols", "rows"), "NVIDIA H200")
    assert described(mesh, find("a100")) is mesh
    real = mx.Mesh("rows:4 cols:2")
    assert described(real, find("h200")) is real


def test_a_search_traces_for_its_hardware():
    step, x = attention(256)
    best = mx.auto_layout(step, mx.Mesh("model:2", abstract=True), x, hardware="h200")[0]
    assert best.mesh.device_kind == "NVIDIA H200"
    assert [name for name, _ in kernels_of(best.report)][:1] == [SHORT]
