"""Training steps of networks of images, on one device, beside the same networks by hand in JAX.

    python benchmarks/images.py measure LINES.jsonl [--small]   on a GPU, three minutes: a line for each network
    python benchmarks/images.py page LINES.jsonl                writes benchmarks/results/images_gpu.md

Both programs begin with the same parameters and the same batch: the losses of four steps have to agree. They take
turns, some steps each, in one process; the median of the turns counts. Nothing is dropped at random.
"""

import argparse
import json
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import meshax as mx
from meshax.models.contract import parameter_count
from meshax.models.resnet import ResNetConfig
from meshax.models.unet import UNetConfig
from meshax.optim import by_name, clipped
from meshax.program import put
from meshax.train.step import compiler_options, init_state, make_train_step

sys.path.insert(0, str(Path(__file__).parent))

import images_by_hand as by_hand

RESULTS = Path(__file__).parent / "results"
RATE, LIMIT = 1e-3, 1.0
FIRST = 4  # steps whose losses are compared
TOLERANCE = 0.02  # of a loss in bfloat16 after them
ALMOST_NOTHING = 1e-3  # so small a loss says that the batch is known by heart, and no more


@dataclass(frozen=True)
class Network:
    """What is measured."""

    name: str
    config: Any
    sizes: dict[str, int]
    steps: int  # of a turn

    @property
    def shown(self) -> str:
        """The sizes of a batch, for reading."""
        return " x ".join(map(str, self.sizes.values()))


_FLAT, _DEEP = UNetConfig(sides=2, dropout=0.0, keep="everything"), UNetConfig(dropout=0.0)
NETWORKS = (  # turns are long enough for the first step's way to the device not to count
    Network("2-D U-Net", _FLAT, {"batch": 16, "x": 512, "y": 512}, 20),
    Network("ResNet-50", ResNetConfig(), {"batch": 128, "x": 224, "y": 224}, 20),
    Network("3-D U-Net", _DEEP, {"batch": 1, "x": 128, "y": 128, "z": 128}, 10),
)
SMALL = (
    Network("2-D U-Net", replace(_FLAT, levels=2, filters=4), {"batch": 2, "x": 16, "y": 32}, 1),
    Network("ResNet-50", ResNetConfig(filters=4, classes=10), {"batch": 4, "x": 32, "y": 32}, 1),
    Network("3-D U-Net", replace(_DEEP, levels=2, filters=4), {"batch": 1, "x": 8, "y": 8, "z": 16}, 1),
)

Steps = Callable[[int], float]  # takes so many steps, and returns the last loss


def ours(network: Network, batch: dict[str, np.ndarray], changes: Sequence[str]) -> tuple[Steps, Any, float]:
    """Returns our program, its first model, and the seconds that it compiled."""
    config, mesh = network.config, mx.Mesh("one:1")
    optimizer = clipped(by_name("adamw", RATE), LIMIT)
    state = mx.spmd(lambda: init_state(config.make, optimizer, jax.random.key(0)), mesh, "")()
    model = jax.tree.map(np.asarray, state.model)  # the state is donated
    shapes = config.batch(network.sizes)
    data = {name: mx.tensor(array, shapes[name].dims) for name, array in batch.items()}
    data, key = put(data, mesh, ""), put(jax.random.key(2), mesh, "")
    begin = time.perf_counter()
    program = mx.spmd(make_train_step(optimizer), mesh, "", 0, compiler_options(mesh, changes))
    compiled = program.trace(state, data, key).lower().compile()
    seconds = time.perf_counter() - begin

    def take(count: int) -> float:
        nonlocal state
        for _ in range(count):
            (state, measured), _ = compiled(state, data, key)
        return float(measured["loss"])

    return take, model, seconds


def theirs(network: Network, model: Any, batch: dict[str, np.ndarray], changes: Sequence[str]) -> tuple[Steps, float]:
    """Returns the program by hand, and the seconds that it compiled."""
    is_unet = isinstance(network.config, UNetConfig)
    w = jax.tree.map(jax.numpy.asarray, (by_hand.of_unet if is_unet else by_hand.of_resnet)(model))
    loss = (by_hand.unet_loss if is_unet else by_hand.resnet_loss)(network.config)
    optimizer = optax.chain(optax.clip_by_global_norm(LIMIT), optax.adamw(RATE))
    moments = optimizer.init(w)
    image, labels = (jax.numpy.asarray(batch[name]) for name in ("image", "labels"))
    _, seen = jax.eval_shape(loss, w, image, labels)
    running = jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), seen)
    begin = time.perf_counter()
    flags = compiler_options(mx.Mesh("one:1"), changes) or None
    step = jax.jit(by_hand.train_step(loss, optimizer), donate_argnums=(0, 1, 2), compiler_options=flags)
    compiled = step.lower(w, moments, running, image, labels).compile()
    seconds = time.perf_counter() - begin

    def take(count: int) -> float:
        nonlocal w, moments, running
        for _ in range(count):
            w, moments, running, value = compiled(w, moments, running, image, labels)
        return float(value)

    return take, seconds


def made_up(network: Network) -> dict[str, np.ndarray]:
    """Returns a batch whose labels follow from its images, the same each time."""
    shapes = network.config.batch(network.sizes)
    rng = np.random.default_rng(0)
    image = rng.normal(size=[d.size for d in shapes["image"].dims]).astype(np.float32)
    labels = [d.size for d in shapes["labels"].dims]
    means = image.reshape(*labels, -1).mean(-1) * 1.5
    classes = np.clip((np.abs(means) * 2).astype(np.int32), 0, network.config.classes - 1)
    return {"image": image, "labels": classes, "weights": np.ones(labels, np.float32)}


def measure(network: Network, turns: int, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Measures a network by both programs, in turns."""
    batch = made_up(network)
    take_ours, model, compile_ours = ours(network, batch, changes)
    take_theirs, compile_theirs = theirs(network, model, batch, changes)
    losses = [[take(1) for _ in range(FIRST)] for take in (take_ours, take_theirs)]
    times: dict[str, list[float]] = {"meshax": [], "jax": []}
    for turn in range(turns):
        programs = [("meshax", take_ours), ("jax", take_theirs)]
        for name, take in programs[:: 1 if turn % 2 else -1]:
            begin = time.perf_counter()
            take(network.steps)
            times[name].append((time.perf_counter() - begin) / network.steps * 1e3)
    device = jax.devices()[0]
    return {
        "network": network.name, "batch": network.shown, "parameters": parameter_count(network.config),
        "dtype": network.config.dtype, "keep": network.config.keep,
        "device": device.device_kind, "jax": jax.__version__, "compiler_options": list(changes),
        "turns_ms": times, "losses": {"meshax": losses[0], "jax": losses[1]},
        "compile_s": {"meshax": compile_ours, "jax": compile_theirs},
    }  # fmt: skip


def ratio(line: dict[str, Any]) -> float:
    """Returns our speed as a share of that by hand."""
    return statistics.median(line["turns_ms"]["jax"]) / statistics.median(line["turns_ms"]["meshax"])


def is_alike(line: dict[str, Any]) -> bool:
    """Returns whether both programs have computed the same."""
    return np.allclose(*line["losses"].values(), rtol=TOLERANCE, atol=ALMOST_NOTHING)


def page(lines: Iterable[dict[str, Any]]) -> str:
    """Returns the page of measurements: of each network, and of each choice of XLA's options, the last."""
    last = {" ".join([line["network"], *map("`{}`".format, line["compiler_options"])]): line for line in lines}
    first = next(iter(last.values()))
    fill = partial(textwrap.fill, width=120)
    rows = []
    for network, line in last.items():
        times = {name: statistics.median(several) for name, several in line["turns_ms"].items()}
        compiled = " and ".join(f"{line['compile_s'][name]:.0f} s" for name in ("meshax", "jax"))
        end = " and ".join(f"{line['losses'][name][-1]:.4f}" for name in ("meshax", "jax"))
        cells = [
            network, f"{line['parameters'] / 1e6:.1f} M", line["batch"], f"{times['meshax']:.2f} ms",
            f"{times['jax']:.2f} ms", f"{ratio(line):.1%}", end, compiled,
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    spread = max(
        (max(several) - min(several)) / statistics.median(several)
        for line in last.values() for several in line["turns_ms"].values()
    )  # fmt: skip
    turns = len(first["turns_ms"]["meshax"])
    return "\n\n".join([
        "# Networks of images on one GPU",
        fill(
            f"One run, {first['device']}, jax {first['jax']}: training steps in {first['dtype']} of our networks and "
            "of the same written by hand in JAX (`benchmarks/images_by_hand.py`), with AdamW, clipped gradients and "
            "running statistics. Both begin with the same parameters; the losses after four steps stand beside each "
            f"other. The programs take turns in one process; the medians of {turns} turns, which differ by "
            f"{spread:.0%} at most."
        ),
        "    python benchmarks/images.py measure LINES.jsonl\n    python benchmarks/images.py page LINES.jsonl",
        "\n".join([
            "| network | parameters | batch | meshax | by hand | our speed | losses, ours and by hand | compiling |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
        ]),
        fill(
            "The U-Nets by hand are what somebody would write: they enlarge by a transposed convolution, and JAX's "
            "derivative of it by its kernel is a convolution whose filter is as large as the image, which cuDNN has no "
            "fast kernel for. Ours asks cuDNN for the gradient of a filter "
            "([how](../../docs/design/convolutions.md#what-gpus-compute)). When both had JAX's, the 2-D U-Net took "
            "44.6 ms, and 42.9 by hand. What compiles first tries cuDNN's algorithms for both."
        ),
    ]) + "\n"  # fmt: skip


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "page"))
    parser.add_argument("lines", type=Path)
    parser.add_argument("--small", action="store_true", help="small networks, to try it without a GPU")
    parser.add_argument("--only", default="", help="the networks whose names have this in them")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--compiler-options", nargs="*", default=(), help="for both programs, as in meshax train")
    asked = parser.parse_args()
    if asked.what == "measure":
        odd = []
        for network in (one for one in (SMALL if asked.small else NETWORKS) if asked.only in one.name):
            line = measure(network, asked.turns, asked.compiler_options)
            with open(asked.lines, "a", encoding="utf-8") as file:
                print(json.dumps(line), file=file)
            print(f"{line['network']}: our speed is {ratio(line):.1%} of that by hand", json.dumps(line), flush=True)
            odd += [] if is_alike(line) else [f"{line['network']}, {line['losses']}"]
        if odd:
            raise SystemExit(f"the programs do not compute the same: {'; '.join(odd)}")
    else:
        lines = [json.loads(line) for line in asked.lines.read_text(encoding="utf-8").splitlines()]
        (RESULTS / "images_gpu.md").write_text(page(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
