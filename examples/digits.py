"""One classifier of handwritten digits, trained under five layouts: the same losses, different communication.

The computation is written once, in named dimensions, and never mentions a processor. Each line of LAYOUTS then
makes another parallel program of it, for 8 processors: virtual ones, on the CPU.
"""

import argparse
import itertools
import sys
from collections import Counter

import jax
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits

import meshax as mx

MESH = "rows:2 cols:4"
LAYOUTS = {
    "none": "",
    "data": "batch:rows+cols",
    "model": "hidden:rows+cols",
    "both": "batch:rows hidden:cols",
    "uneven": "features:rows classes:cols",  # 75 over 2 processors is 38 + 37, 10 over 4 is 3 + 3 + 3 + 1
}
TOLERANCE = 1e-4  # layouts add up the same float32 numbers in different orders
RATE, MOMENTUM = 0.05, 0.9

batch, pixels, hidden, features, classes = mx.dims(batch=96, pixels=64, hidden=128, features=75, classes=10)


def init(key):
    """Returns the weights, which are the same under every layout, and the momentum."""

    def layer(key, before, after):
        weight = mx.random.normal(key, (before, after)) * (2 / before.size) ** 0.5
        return {"weight": mx.param(weight), "bias": mx.param(mx.zeros(after))}

    layers = zip(jax.random.split(key, 3), (pixels, hidden, features), (hidden, features, classes), strict=True)
    weights = [layer(*each) for each in layers]
    return weights, jax.tree.map(lambda w: w * 0.0, weights)


def predict(weights, images):
    first, second, third = weights
    h = mx.relu(mx.einsum(images, first["weight"], over=pixels) + first["bias"])
    h = mx.relu(mx.einsum(h, second["weight"], over=hidden) + second["bias"])
    return mx.einsum(h, third["weight"], over=features) + third["bias"]


def loss(weights, images, labels):
    return mx.mean(mx.softmax_cross_entropy(predict(weights, images), labels, over=classes))


def step(state, images, labels):
    weights, velocity = state
    value, grads = mx.value_and_grad(loss)(weights, images, labels)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, grads)
    return (jax.tree.map(lambda w, v: w - RATE * v, weights, velocity), velocity), value


def accuracy(state, images, labels):
    return mx.mean(mx.argmax(predict(state[0], images), over=classes) == labels)


def batches():
    """Yields first the 297 images to test with, as one batch, then without end batches of the other 1500."""
    digits, random = load_digits(), np.random.default_rng(0)
    order = random.permutation(len(digits.target))
    chosen = order[1500:]
    while True:
        images, labels = digits.data[chosen] / 16, digits.target[chosen]
        yield mx.tensor(images.astype(np.float32), "batch pixels"), mx.tensor(labels.astype(np.int32), "batch")
        chosen = random.choice(order[:1500], batch.size, replace=False)


def train(mesh, num_steps):
    """Trains under every layout side by side; returns by layout the losses, the accuracy, and what is communicated."""
    test, *data = itertools.islice(batches(), num_steps + 1)
    programs = {name: mx.spmd(step, mesh, layout) for name, layout in LAYOUTS.items()}
    states = {name: mx.spmd(init, mesh, layout)(jax.random.key(0)) for name, layout in LAYOUTS.items()}
    losses = {name: [] for name in LAYOUTS}
    for examples in track(data, description=f"training under {len(LAYOUTS)} layouts"):
        for name, program in programs.items():
            states[name], value = program(states[name], *examples)
            losses[name].append(float(value))
    scores = {name: float(mx.spmd(accuracy, mesh, layout)(states[name], *test)) for name, layout in LAYOUTS.items()}
    reports = {name: program.explain(states[name], *examples) for name, program in programs.items()}
    return losses, scores, reports


def loss_table(losses, scores):
    table = Table("step", *LAYOUTS, title="Loss", title_justify="left")
    num_steps = len(losses["none"])
    for i in sorted({round(i) for i in np.linspace(0, num_steps - 1, 9)}):
        table.add_row(str(i + 1), *(f"{losses[name][i]:.4f}" for name in LAYOUTS), end_section=i == num_steps - 1)
    table.add_row("test accuracy", *(f"{scores[name]:.1%}" for name in LAYOUTS))
    return table


def communication_table(reports):
    table = Table(title=f"Communication in one step, on {MESH}", title_justify="left", show_lines=True)
    for column in ("", "layout", "collective", "over", "times", "bytes sent"):
        table.add_column(column, justify="right" if column in ("times", "bytes sent") else "left")
    for name, report in reports.items():
        times, sent = Counter(), Counter()
        for c in report.collectives:
            times[c.kind, c.axes] += c.count
            sent[c.kind, c.axes] += c.count * c.wire_bytes
        lines = [(key[0], "+".join(key[1]), f"{times[key]}", f"{sent[key]:,}") for key in times]
        columns = zip(*lines or [("none", "", "", "")], strict=True)
        table.add_row(name, "\n".join(LAYOUTS[name].split()), *map("\n".join, columns))
    return table


def max_difference(losses):
    """Returns the largest relative difference between a layout's loss and the unsplit one, over all steps."""
    unsplit = np.array(losses["none"])
    return max(np.max(np.abs(np.array(split) - unsplit) / np.abs(unsplit)) for split in losses.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="training steps under each layout (%(default)s)")
    num_steps = parser.parse_args().steps
    if num_steps < 1:
        parser.error("--steps is at least 1")

    jax.config.update("jax_num_cpu_devices", 8)
    mesh = mx.Mesh(MESH, devices=jax.devices() if len(jax.devices()) >= 8 else jax.devices("cpu"))
    losses, scores, reports = train(mesh, num_steps)

    console = Console()
    console.print(loss_table(losses, scores))
    console.print(communication_table(reports))
    difference = max_difference(losses)
    if not difference <= TOLERANCE:  # NaN is no agreement either
        sys.exit(f"The losses disagree: by {difference:.1e} relative, and {TOLERANCE:.0e} is allowed.")
    console.print(f"The same losses under every layout: the largest relative difference is {difference:.1e}.")
    console.print("Read next: README.md, which builds such a program in four steps.")


if __name__ == "__main__":
    main()
