"""Step time, utilization and peak memory of a language model's training step, on whatever JAX finds here.

    python benchmarks/language_models.py --preset lm-4.90b --batch 32 --length 256 --keep products

Tokens are random and examples are not packed: the arithmetic is that of training, the text does not matter.
"""

import argparse
import json
from dataclasses import replace

import jax
import jax.numpy as jnp

import meshax as mx
from meshax.bench.calibrate import fastest
from meshax.models.contract import parameter_count
from meshax.models.presets import PRESETS, preset
from meshax.models.recomputation import KEEP
from meshax.optim import by_name, clipped
from meshax.plan.cost.hardware import of_device
from meshax.train.step import init_state, make_train_step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="tiny", choices=PRESETS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--keep", default="products", choices=KEEP, help="what the backward pass keeps")
    parser.add_argument("--optimizer", default="adafactor")
    parser.add_argument("--mesh", default="data:1 model:1")
    parser.add_argument("--layout", default="")
    parser.add_argument("--repeats", type=int, default=8)
    options = parser.parse_args()

    model = replace(preset(options.preset).model, keep=options.keep)
    mesh, optimizer = mx.Mesh(options.mesh), clipped(by_name(options.optimizer, 0.01), 1.0)
    dims = mx.dims(batch=options.batch, length=options.length)

    def init():
        return init_state(model.make, optimizer, jax.random.key(0))

    def batch():
        tokens = mx.random.randint(jax.random.key(1), dims, 2, model.vocab)
        return {"tokens": tokens, "targets": tokens, "weights": mx.ones(dims)}

    step = mx.spmd(make_train_step(optimizer), mesh, options.layout, donate=0)
    data = mx.spmd(batch, mesh, options.layout)()
    made = mx.spmd(init, mesh, options.layout)
    key = jax.random.key(2)
    report = step.explain(made.trace().results, data, key)
    state = {"now": made()}

    def once():
        state["now"], measured = step(state["now"], data, key)
        return measured["loss"]

    seconds = fastest(once, repeats=options.repeats)
    stats = jax.devices()[0].memory_stats() or {}
    machine = of_device(jax.devices()[0].device_kind)
    flops = report.utilization(machine) * report.seconds(machine) * machine.peak(jnp.dtype(model.dtype))
    print(
        json.dumps(
            {
                "preset": options.preset,
                "parameters": parameter_count(model),
                "batch": options.batch,
                "length": options.length,
                "keep": options.keep,
                "step_ms": round(seconds * 1e3, 1),
                "tokens_per_second": round(options.batch * options.length / seconds),
                "utilization": round(flops / seconds / machine.peak(jnp.dtype(model.dtype)), 3),
                "peak_gib": round(stats.get("peak_bytes_in_use", 0) / 2**30, 1),
                "predicted_ms": round(report.seconds(machine) * 1e3, 1),
                "predicted_peak_gib": round(report.memory["peak"] / 2**30, 1),
                "hardware": machine.name,
                "jax": jax.__version__,
                "loss": round(float(once()), 3),
            }
        )
    )


if __name__ == "__main__":
    main()
