"""Predicted against measured: step time and peak memory of a Transformer under several layouts.

The constants of the machine are measured by microbenchmarks first (`meshax.bench.calibrate`); the Transformer steps
are not used for tuning them. Writes what it finds, as it is, to benchmarks/results/predictions_PLATFORM.md.

    python benchmarks/predictions.py [--write]
"""

import argparse
import platform
import sys
from pathlib import Path

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the results file")
    parser.add_argument("--rounds", type=int, default=3, help="turns of the machine and all steps; the fastest counts")
    parser.add_argument("--repeats", type=int, default=5, help="calls of each step in a round; the fastest counts")
    return parser.parse_args()


def configurations(transformer, kind):
    """Yields a name, the sizes and the layout of each program."""
    if kind != "cpu":
        for heads, batch, length in ((4, 32, 256), (16, 32, 256), (64, 32, 256), (16, 8, 1024), (32, 64, 128)):
            yield f"{heads} heads, {batch} x {length}", transformer.Sizes(heads, batch=batch, length=length), ""
        return
    sizes = {
        "small": transformer.Sizes(8, batch=16, length=64, vocab=512, d_model=64, d_k=16, layers=2, dtype="float32"),
        "middle": transformer.Sizes(
            8, batch=16, length=128, vocab=1024, d_model=128, d_k=32, layers=4, dtype="float32"
        ),
        "large": transformer.Sizes(8, batch=32, length=128, vocab=2048, d_model=256, d_k=32, layers=6, dtype="float32"),
    }
    layouts = {
        "data": "batch:data+model",
        "model": "heads:data+model d_ff:data+model vocab:data+model",
        "data+model": "batch:data heads:model d_ff:model vocab:model",
    }
    for size, s in sizes.items():
        for layout, rules in layouts.items():
            yield f"{size}, {layout}", s, rules


def total(stats):
    return (
        stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes + stats.temp_size_in_bytes
    )


def main():
    options = arguments()
    import meshax as mx

    if jax.config.jax_platforms == "cpu" or not any(d.platform != "cpu" for d in jax.devices()):
        jax.extend.backend.clear_backends()
        jax.config.update("jax_num_cpu_devices", 8)
    import transformer
    from meshax.bench.calibrate import Calibration, fastest

    kind = jax.devices()[0].platform
    mesh = mx.Mesh("data:2 model:4") if kind == "cpu" else mx.Mesh("data:1 model:1")
    programs = {}
    for name, sizes, rules in configurations(transformer, kind):
        fn, shapes, donate = transformer.training_step(sizes)
        program = mx.spmd(fn, mesh, rules, donate)
        programs[name] = program, program.explain(*shapes), total(program.compile(*shapes).memory_analysis()), shapes

    calibrations, measured = [], dict.fromkeys(programs, float("inf"))
    for number in range(options.rounds):
        calibrations.append(Calibration())
        for m in calibrations[-1].run():
            print(f"round {number + 1}: {m.what} {m.seconds * 1e6:,.1f} us", flush=True)
        for name, (program, _, _, shapes) in programs.items():
            args = mx.spmd(lambda: materialized(mx, shapes), mesh, program.layout)()  # noqa: B023
            state = {"args": args}

            def step(state=state, program=program):
                w, moments, value = program(*state["args"])
                state["args"] = (w, moments, *state["args"][2:])
                return value

            measured[name] = min(measured[name], fastest(step, repeats=options.repeats))
            print(f"round {number + 1}: {name} {measured[name] * 1e3:,.2f} ms", flush=True)

    # what else the machine does slows a round down, its calibration too
    calibration = max(calibrations, key=lambda one: one.hardware().peak("float32"))
    hardware = calibration.hardware()
    lines = ["| microbenchmark | time | rate |", "|---|---|---|"]
    lines += [f"| {m.what} | {m.seconds * 1e6:,.1f} us | {m.rate:.3g} {m.unit} |" for m in calibration.measured]
    lines += ["", "| program | step, measured | predicted | ratio | memory, compiler's | predicted | ratio |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name, (_, report, memory, _) in programs.items():
        predicted = report.seconds(hardware)
        lines.append(
            f"| {name} | {measured[name] * 1e3:.2f} ms | {predicted * 1e3:.2f} ms | {predicted / measured[name]:.2f} "
            f"| {memory / 1e6:,.1f} MB | {report.memory['peak'] / 1e6:,.1f} MB | {report.memory['peak'] / memory:.2f} |"
        )
        print(name, report.time(hardware))
    print("\n".join(lines))
    if options.write:
        device = jax.devices()[0].device_kind
        head = [
            f"# Predicted against measured: {kind}",
            "",
            f"`python benchmarks/predictions.py --write`, jax {jax.__version__}, Python {platform.python_version()}, "
            f"{len(jax.devices())} x {device}.",
            "",
        ]
        (HERE / "results" / f"predictions_{kind}.md").write_text("\n".join([*head, *lines]) + "\n")


def materialized(mx, shapes):
    """Values of the wanted shapes, made where they are stored."""
    from meshax.tensors import with_role

    keys = iter(jax.random.split(jax.random.key(0), 200))

    def make(x):
        if not isinstance(x, mx.Tensor):
            return jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x
        if np.issubdtype(x.dtype, np.integer):
            return with_role(mx.random.randint(next(keys), x.dims, 0, 100), x.role)
        return with_role(mx.random.normal(next(keys), x.dims) * 0.05 if x.role == "param" else mx.ones(x.dims), x.role)

    return jax.tree.map(make, shapes, is_leaf=lambda x: isinstance(x, mx.Tensor))


if __name__ == "__main__":
    main()
