"""The programs that ours are measured beside compute the same, and a step sends the least there is."""

import dataclasses
import importlib.util
import itertools
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshax as mx
from extent import some
from hlo import wire as sent
from meshax.bench import plain_jax
from meshax.data.synthetic_ct import LESION, draw_case
from meshax.models.decoder import DecoderConfig
from meshax.models.presets import preset
from meshax.optim import Adafactor, clipped
from meshax.train.step import init_state, make_train_step

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load(name):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


wire = load("wire")


@pytest.mark.exhaustive
def test_the_model_by_hand_trains_as_ours():
    config = DecoderConfig(
        d_model=128, heads=4, d_kv=16, d_ff=256, layers=2, vocab=256, dtype="float32", keep="everything"
    )
    optimizer = clipped(Adafactor(0.01), 1.0)
    state = mx.spmd(lambda: init_state(config.make, optimizer, jax.random.key(0)), mx.Mesh("x:1"), "")()
    tokens = np.int32(np.arange(128).reshape(4, 32) * 7 % 256)
    targets = np.int32((tokens + 3) % 256)
    dims = mx.dims(batch=4, length=32)
    batch = {name: mx.tensor(x, dims) for name, x in (("tokens", tokens), ("targets", targets))}
    batch["weights"] = mx.ones(dims)
    ours = mx.spmd(make_train_step(optimizer), mx.Mesh("x:1"), "")
    w = plain_jax.of_model(state.model)
    moments, step = plain_jax.adafactor_state(w), jax.jit(plain_jax.train_step(plain_jax.like(config)))
    for number in range(3):
        w, moments, theirs = step(w, moments, number, tokens, targets)
        state, measured = ours(state, batch, jax.random.key(0))
        assert float(measured["loss"]) == pytest.approx(float(theirs), rel=1e-5)
    assert float(theirs) < 5.1


@pytest.mark.parametrize(("processors", "name"), [(n, case.name) for n in (8, 512) for case in wire.cases(n)])
def test_a_step_sends_the_least_there_is(name, processors, monkeypatch):
    monkeypatch.setattr(wire, "D_MODEL", max(128, processors))
    case = next(case for case in wire.cases(processors) if case.name == name)
    program, args = wire.our_program(case, abstract=True)
    assert program.explain(*args).wire_bytes == pytest.approx(wire.least(case)[1], abs=2)  # halves of a byte


@pytest.mark.parametrize("name", ["fully sharded", "fully sharded, gradients in rings", "sequence"])
def test_as_compiled_it_is_no_more(name):
    """It may be less: where XLA finds that something is gathered twice, it may do it once."""
    case = next(case for case in wire.cases(8) if case.name == name)
    assert wire.ours(case, False, None) <= wire.least(case)[1] + 2


def test_the_page_of_writing_is_made_of_lines():
    """Several turns count together, other flags of the compiler do not; what is predicted stands beside ours."""
    decode = load("decode")
    line = {
        "program": "meshax", "preset": "lm-1.28b", "slots": 8, "turn": 0, "flags": "", "context": 1024, "tokens": 64,
        "device": "a GPU", "bound_ms": 1.28, "rounds_ms": [1.5, 1.7, 1.6], "first_ms": 20.0, "peak_gib": 7.0,
        "kernels_ms": {"products": 1.4, "idle": 0.2},
    }  # fmt: skip
    by_hand = {**line, "program": "jax", "rounds_ms": [2.56], "first_ms": 0.0, "kernels_ms": {}}
    lines = [by_hand, line, {**line, "turn": 1, "rounds_ms": [1.6, 1.6]}, {**line, "flags": "x", "rounds_ms": [9.0]}]
    page = decode.page([{"failed": "torch"}, *lines])
    assert "| lm-1.28b | 8 | meshax | 1.600 ms | 80% | 5,000 | 20.0 ms | 1.499 ms |" in page
    assert "| lm-1.28b | 8 | JAX by hand | 2.560 ms | 50% | 3,125 |  |  |" in page
    assert "| lm-1.28b | 8 | meshax | 1.400 | 0.200 |" in page


# What `meshax train` makes of the bare step: 10 ms beside 9, one evaluation, and a checkpoint that delays a step by 5.
ROWS = [
    *({"step": step, "loss": 3.0, "tokens_per_second": 64 / 0.010} for step in (5, 10, 15, 20, 30)),
    {"step": 15, "eval_loss": 3.0},
    {"step": 15, "evaluation_seconds": 1.5},
    {"step": 20, "saving_seconds": 0.002},
    {"step": 25, "loss": 3.0, "tokens_per_second": 64 / 0.011},
]
RUN = {"preset": "tiny", "batch": 4, "length": 16, "as_published": False}
TRAINING = [
    {"program": "bench", **RUN, "seconds": 0.009, "device": "a processor"},
    {"program": "packed", **RUN, "seconds": 0.0095, "device": "a processor"},
    {"program": "train", **RUN, "every": 5, "steps": 30, "rows": ROWS},
]


def test_training_beside_its_bare_step():
    training = load("training")
    line = TRAINING[-1]
    assert training.speed(line) == pytest.approx(0.010) and training.stopped(line, "saving") == 0.002
    assert training.delayed(line) == pytest.approx(0.005)  # 5 steps of 1 ms more
    page = training.page(TRAINING)
    assert "| tiny, 4 x 16 | 9.0 ms | 9.5 ms | 10.0 ms | 90.0% | 95.0% |" in page
    assert "| tiny | 10.0 ms | 1.50 s | 2.0 ms | 5.0 ms | 0.70 |" in page


def test_perplexity_against_parameters(tmp_path):
    scaling = load("scaling")
    lines = [
        {"heads": heads, "parameters": size, "embeddings": 10**6, "perplexity": perplexity, "train_loss": 2.5}
        for heads, size, perplexities in ((4, 9_100_000, (30.0, 34.0)), (1, 5_400_000, (40.0,)))
        for perplexity in perplexities
    ]
    *_, small, large, _ = scaling.page(lines).split("\n")
    assert small == "| 1 | 5.4 M | 4.4 M | 40.00 | 40.00, 40.00 | 2.500 |"
    assert large == "| 4 | 9.1 M | 8.1 M | 32.00 | 30.00, 34.00 | 2.500 |"
    for name in ("a.svg", "b.svg"):
        scaling.draw(lines, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(3))
def test_networks_of_images_by_hand_train_as_ours(number):
    """In float32 to many digits, before a step and after it; then Adam has made whole steps of what was rounding."""
    images = load("images")
    small = images.SMALL[number]
    exact = dataclasses.replace(small, config=dataclasses.replace(small.config, dtype="float32"))
    line = images.measure(exact, turns=1)
    assert not images.is_alike({"losses": {"meshax": [2.0, 1.5], "jax": [2.0, 1.6]}})
    np.testing.assert_allclose(*(losses[:2] for losses in line["losses"].values()), rtol=1e-4)
    assert line["losses"]["meshax"][-1] < line["losses"]["meshax"][0]


def test_the_page_of_images_is_made_of_lines():
    images = load("images")
    line = {
        "network": "3-D U-Net", "batch": "1 x 128 x 128 x 128", "parameters": 5_600_000, "dtype": "bfloat16",
        "keep": "nothing", "device": "a GPU", "jax": "0.1", "turns_ms": {"meshax": [50.0, 52.0, 51.0], "jax": [51.0]},
        "losses": {"meshax": [2.0, 1.0], "jax": [2.0, 1.01]}, "compile_s": {"meshax": 20.4, "jax": 10.0},
        "compiler_options": [],
    }  # fmt: skip
    older = {**line, "turns_ms": {"meshax": [9.0], "jax": [9.0]}}
    asked = {**line, "compiler_options": ["xla_some=true"]}
    page = images.page([older, line, asked])
    sizes, figures = "| 3-D U-Net | 5.6 M | 1 x 128 x 128 x 128 |", "51.00 ms | 51.00 ms | 100.0% | 1.0000 and 1.0100 |"
    assert f"{sizes} {figures} 20 s and 10 s |" in page and "9.00 ms" not in page
    assert "| 3-D U-Net `xla_some=true` |" in page


def test_lesions_are_scored_where_they_are():
    lesions = load("lesions")
    case = next(draw_case(0, number) for number in range(9) if len(radii(draw_case(0, number))) > 3)
    small = lesions.only_small(case)
    assert radii(small) == [radius for radius in radii(case) if radius < lesions.SMALL_RADIUS]
    assert 0 < len(radii(small)) < len(radii(case)) and len(small.shapes) < len(case.shapes)
    said, truth = np.array([2, 2, 1, 0]), np.array([2, 0, 2, 0])
    assert lesions.overlap(said, truth, 2) == pytest.approx(0.5)
    assert lesions.overlap(said, truth, 1) == 0 and lesions.overlap(truth, truth, 7) == 1


def test_each_resolution_is_written_when_it_is_done(tmp_path, monkeypatch):
    lesions, path = load("lesions"), tmp_path / "result.json"

    def train(trial, data, size, steps, held):
        if size < 16:
            raise SystemExit("cut")
        return {"size": size, "steps": 3}

    monkeypatch.setattr(lesions, "train", train)
    monkeypatch.setattr(lesions, "volumes", lambda numbers, size, is_small=False: (np.zeros(1), np.zeros(1)))
    with pytest.raises(SystemExit, match="cut"):
        lesions.train_all(lesions.SMALL, path)
    assert json.loads(path.read_text())["rows"] == [{"size": 16, "steps": 3}]


def test_the_figure_of_lesions_is_the_same_each_time(tmp_path):
    draw = load("lesions_figure").draw
    memory = json.loads((FOLDER / "results" / "unet3d_512_memory.json").read_text())
    rows = [{"size": size, "small": 0.5, "lesions": 0.7, "liver": 0.9} for size in (128, 64, 32)]
    for name in ("a.svg", "b.svg"):
        draw({"rows": rows}, memory, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "a core of a TPU v3 has 17 GB" in (tmp_path / "a.svg").read_text()


@pytest.mark.tpu
def test_sixteen_cores_hold_a_volume():
    """Mesh-TensorFlow's U-Net, a training step; the compiler has assigned its buffers long before it ends."""
    what = ["--preset", "unet3d-512", "--mesh", "rows:4 cols:4", "--layout", "x:rows y:cols"]
    assert 10e9 < load("lesions").compiler_bytes([*what, "--topology", "tpu v3:2x4"], 600) < 15.48 * 2**30


def test_a_dump_says_what_buffers_take(tmp_path):
    read = load("lesions").assigned_bytes
    assert read(tmp_path) is None
    (tmp_path / "module_0000.jit_stage.cpu_after_optimizations-memory-usage-report.txt").write_text(
        "Total bytes: 8 (8B)"
    )
    assert read(tmp_path) is None
    report = tmp_path / "module_0003.jit__run.cl_9.after_optimizations-memory-usage-report.txt"
    report.write_text("Memory Space: default (color=0)\nTotal bytes: 14336492544 (13.35GiB)\n")
    assert read(tmp_path) == 14336492544


def radii(case):
    return [max(shape.radii) for shape in case.shapes if shape.label == LESION]


SPLITS = ["batch:rows+cols", "x:rows+cols", "x:rows y:cols", "batch:rows x:cols"]
NETWORKS = {  # ResNets at the usual size: where stages have fewer places than processors, GSPMD sends less
    "2-D U-Net": dict(batch=8, x=32, y=32),
    "3-D U-Net": dict(batch=8, x=16, y=16, z=16),
    "ResNet-18": dict(batch=16, x=224, y=224),
}


@pytest.mark.parametrize(
    "case", some(itertools.product(NETWORKS, SPLITS), ("2-D U-Net", "x:rows y:cols")), ids=" under ".join
)
def test_a_network_of_images_sends_no_more_than_gspmd(case):
    """The loss and its gradients, of the same network by hand that `jax.jit` divides, split alike."""
    name, layout = case
    images, by_hand, sizes = load("images"), load("images_by_hand"), NETWORKS[name]
    small = {network.name: network.config for network in images.SMALL} | {"ResNet-18": preset("resnet-18").model}
    config = dataclasses.replace(small[name], dtype="float32")
    weights_of, loss_of = (
        (by_hand.of_unet, by_hand.unet_loss) if "U-Net" in name else (by_hand.of_resnet, by_hand.resnet_loss)
    )
    mesh, batch = mx.Mesh("rows:2 cols:4"), config.batch(sizes)

    def loss(model, batch):
        total, count = model.loss(batch)
        return total / count

    model = jax.eval_shape(lambda: config.make(jax.random.key(0)))
    ours = mx.spmd(mx.value_and_grad(loss), mesh, layout).compile(model, batch).as_text()

    rules = {dim: tuple(axes.split("+")) for dim, axes in (rule.split(":") for rule in layout.split())}
    shards = [
        NamedSharding(mesh.jax_mesh, PartitionSpec(*(rules.get(d.name) for d in dims)))
        for dims in ((), batch["image"].dims, batch["labels"].dims)
    ]
    arrays = [jax.ShapeDtypeStruct([d.size for d in batch[n].dims], batch[n].dtype) for n in ("image", "labels")]
    by_jit = jax.jit(
        jax.value_and_grad(loss_of(config), has_aux=True), in_shardings=tuple(shards), out_shardings=shards[0]
    )
    theirs = by_jit.lower(jax.eval_shape(weights_of, model), *arrays).compile().as_text()

    assert 0 < sent(ours) <= sent(theirs)


def test_tracing_a_preset_beside_the_program_by_hand():
    load("decoder_by_hand")
    load("decoder_meshax")
    cases = load("tracing").preset_cases("lm-0.14b")
    seconds = load("tracing").fastest(1, {name: cases[name] for name in list(cases)[:2]})
    assert list(seconds) == ["by hand, one device", "meshax, 1 processor, unrolled"] and min(seconds.values()) > 0
