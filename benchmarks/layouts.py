"""Does the automatic layout hold what it promises? Step times of its choice and of the usual layouts, in one run.

python benchmarks/layouts.py [--write]
"""

import argparse
import os
import platform
import sys
from pathlib import Path

import jax

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))
jax.config.update("jax_num_cpu_devices", 8)

import predictions  # noqa: E402

import meshax as mx  # noqa: E402
import transformer  # noqa: E402
from meshax.bench.calibrate import fastest  # noqa: E402
from meshax.plan.search.layout_search import search  # noqa: E402
from meshax.plan.search.named_layouts import find_layout, sizes_of  # noqa: E402
from meshax.train.config import TrainConfig  # noqa: E402
from meshax.train.examples import batch_shapes  # noqa: E402
from meshax.train.step_memory import step_and_shapes  # noqa: E402

MESH = mx.Mesh("data:2 model:4")
TENSOR = "heads:{0} d_ff:{0} vocab:{0}"


def mlp():
    batch, pixels, hidden, classes = mx.dims(batch=128, pixels=784, hidden=1024, classes=10)

    def loss(w, images, labels):
        h = mx.relu(mx.einsum(images, w["in"], out=(batch, hidden)))
        logits = mx.einsum(h, w["out"], out=(batch, classes))
        return mx.mean(mx.softmax_cross_entropy(logits, labels, over=classes))

    def step(w, images, labels):
        value, grads = mx.value_and_grad(loss)(w, images, labels)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value

    def shape(*dims, dtype="float32"):
        return mx.Tensor(jax.ShapeDtypeStruct(tuple(d.size for d in dims), dtype), dims)

    w = {"in": mx.param(shape(pixels, hidden)), "out": mx.param(shape(hidden, classes))}
    usual = {
        "data": mx.Layout("batch:data+model"),
        "model": mx.Layout("hidden:data+model"),
        "data and model": mx.Layout("batch:data hidden:model"),
        "fully sharded": mx.Layout("batch:data+model", params="hidden:data+model"),
    }
    return step, (w, shape(batch, pixels), shape(batch, dtype="int32")), (0,), usual


def small_transformer():
    sizes = transformer.Sizes(8, batch=16, length=128, vocab=1024, d_model=128, d_k=32, dtype="float32")
    usual = {
        "data": mx.Layout("batch:data+model"),
        "model": mx.Layout(TENSOR.format("data+model")),
        "data and model": mx.Layout("batch:data " + TENSOR.format("model")),
        "fully sharded": mx.Layout("batch:data+model", params="d_model:data+model"),
    }
    return *transformer.training_step(sizes), usual


def language_model():
    """The step of `meshax train`."""
    config = TrainConfig()
    batch = batch_shapes(config.model(), config.sizes())
    step, shapes = step_and_shapes(config.model(), config.make_optimizer(), batch)
    names = {"data": "data", "model": "model", "data and model": "data+model", "fully sharded": "fsdp"}
    usual = {kind: find_layout(name, MESH, sizes=sizes_of(shapes)) for kind, name in names.items()}
    return step, shapes, (0,), usual


def stepping(program, shapes):
    """Returns a function that takes one step, of an own state: what is donated comes back first."""
    carried = len(program.donate)
    state = mx.spmd(lambda: predictions.materialized(mx, shapes), program.mesh, program.layout)()

    def step():
        nonlocal state
        results = program(*state)
        state = (*results[:carried], *state[carried:])
        return results[carried:]

    return step


def fastest_in_turns(steps, rounds=15):
    """Returns the seconds of each program's fastest step; they take turns, so that noise meets all of them."""
    best = [fastest(step, repeats=1) for step in steps]
    for _ in range(rounds):
        best = [min(so_far, fastest(step, repeats=1)) for so_far, step in zip(best, steps, strict=True)]
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/layouts.md")
    options = parser.parse_args()
    programs_of = {"MLP": mlp(), "Transformer": small_transformer(), "`meshax train`": language_model()}
    lines = ["| program | layout | step | of the fastest | bytes sent | predicted |", "|---|---|---|---|---|---|"]
    print("\n".join(lines))
    for name, (fn, shapes, donate, usual) in programs_of.items():
        best = search(fn, shapes, [MESH], hardware="cpu", donate=donate)[0]
        layouts = {f"automatic: `{best.layout}`": best.layout, **usual}
        programs = [mx.spmd(fn, MESH, layout, donate) for layout in layouts.values()]
        steps = [stepping(program, shapes) for program in programs]
        times = fastest_in_turns(steps)
        for kind, program, measured in zip(layouts, programs, times, strict=True):
            report = program.explain(*shapes)
            lines.append(
                f"| {name} | {kind} | {measured * 1e3:.2f} ms | {measured / min(times):.2f} | {report.wire_bytes:,} "
                f"| {report.seconds('cpu') * 1e3:.2f} ms |"
            )
            print(lines[-1], flush=True)
    if options.write:
        head = [
            "# The automatic layout against the usual ones",
            "",
            f"`python benchmarks/layouts.py --write`, jax {jax.__version__}, Python {platform.python_version()}, "
            f"8 virtual CPU processors on {os.cpu_count()} cores, mesh data:2 model:4.",
            "",
            "The programs take turns, and the fastest of 16 steps of each counts. Where the automatic layout is one of",
            "the usual ones, their difference is the noise. Predictions that differ by a few percent tell nothing.",
            "",
        ]
        (HERE / "results" / "layouts.md").write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
