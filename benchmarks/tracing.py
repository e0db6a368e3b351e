"""How long meshax takes to trace a training step of a decoder.

Compared with the same step written by hand with `jax.shard_map`, on 8 abstract processors; and with itself, on 4096.
With `--preset lm-4.90b`: the whole training step of a preset, beside the one written by hand in JAX for one device.
Programs are traced in full each time, in turns; the processor time of the fastest of many runs counts.
"""

import argparse
import gc
import platform
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import decoder_by_hand
import decoder_meshax
import jax

import meshax as mx
from meshax.bench import plain_jax
from meshax.bench.step import Step
from meshax.optim import by_name, clipped
from meshax.plan.reading.communication import collectives_of
from meshax.plan.reading.walk import read
from meshax.plan.search.named_layouts import find_layout
from meshax.train.step_memory import step_and_shapes

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "tracing.md"
SMALL = mx.Mesh("data:2 model:4", abstract=True)
LARGE = mx.Mesh("data:64 model:64", abstract=True)
TENSORS = decoder_meshax.arguments()
ARRAYS = jax.tree.map(lambda x: x.array, TENSORS, is_leaf=lambda x: isinstance(x, mx.Tensor))

CASES = {
    "by hand, 8 processors": lambda: decoder_by_hand.trace(SMALL.jax_mesh, ARRAYS),
    "meshax, 8 processors": lambda: decoder_meshax.trace(SMALL, TENSORS),
    "meshax, 4096 processors": lambda: decoder_meshax.trace(LARGE, TENSORS),
}


def preset_cases(name):
    """The training step of a preset: by hand on one device; ours, its layers unrolled as there, and as a loop."""
    step = Step(name, layers_as="unrolled", keep="everything")
    config, sizes = step.model(), step.sizes()
    plain = plain_jax.like(config, keep="everything")
    weights = jax.eval_shape(plain.init, jax.random.key(0))
    number, tokens = (jax.ShapeDtypeStruct(shape, "int32") for shape in ((), tuple(sizes.values())))
    by_hand = weights, jax.eval_shape(plain_jax.adafactor_state, weights), number, tokens, tokens

    def ours(layers_as, axes, layout):
        shapes = {name: config.batch(sizes)[name] for name in ("tokens", "targets", "weights")}
        chosen, optimizer = replace(config, layers_as=layers_as), clipped(by_name("adafactor", 0.01), 1.0)
        function, args = step_and_shapes(chosen, optimizer, shapes)
        mesh = mx.Mesh(axes, abstract=True)
        rules = find_layout(layout, mesh, known=config.glossary, sizes=config.sizes())
        return lambda: mx.spmd(function, mesh, rules).trace(*args)

    return {
        "by hand, one device": lambda: jax.jit(plain_jax.train_step(plain)).trace(*by_hand),
        "meshax, 1 processor, unrolled": ours("unrolled", "data:1", "none"),
        "meshax, 1 processor, looped": ours("loop", "data:1", "none"),
        "meshax, 8 processors, data+model, unrolled": ours("unrolled", "data:2 model:4", "data+model"),
        "meshax, 512 processors, data+model, unrolled": ours("unrolled", "data:16 model:32", "data+model"),
    }


def communication(jaxpr, mesh):
    """Counts collectives by kind, mesh axes and elements."""
    counts = Counter()
    for c in collectives_of(read(jaxpr), mesh.axes):
        counts[c.kind, c.axes, c.elements] += c.count
    return counts


def check_comparable():
    """Exits unless both programs communicate the same; returns how many collectives of each kind they have."""
    by_hand, ours = (communication(CASES[name](), SMALL) for name in list(CASES)[:2])
    if by_hand != ours:
        sys.exit(f"not the same communication:\n  only by hand: {by_hand - ours}\n  only meshax: {ours - by_hand}")
    kinds = Counter()
    for (kind, *_), count in ours.items():
        kinds[kind] += count
    return kinds


def fastest(runs, cases=CASES):
    """Returns the seconds of the fastest of many runs of each case, in turns."""
    times = {name: [] for name in cases}
    for _ in range(runs):
        for name, trace in cases.items():
            if cases is not CASES:
                jax.clear_caches()
            gc.collect()
            start = time.thread_time()  # tracing has one thread, and other processes' time is not ours
            trace()
            times[name].append(time.thread_time() - start)
    return {name: min(of_case) for name, of_case in times.items()}


def cpu_model():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def commit():
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "benchmarks/*.py")
    return git("rev-parse", "--short=12", "HEAD") + (" and uncommitted changes" if changed else "")


def result(seconds, kinds, runs):
    by_hand, small, large = seconds.values()
    description = "\n".join(__doc__.splitlines()[2:])
    times = "\n".join(f"| {name} | {value * 1e3:.1f} ms |" for name, value in seconds.items())
    return f"""# Tracing a training step

{description}

Both programs communicate the same: {", ".join(f"{count} {kind}s" for kind, count in kinds.items())} a step.

| | |
|---|---|
{times}
| meshax to by hand | {small / by_hand:.2f} |
| meshax, 4096 to 8 processors | {large / small:.2f} |

- command: `python benchmarks/tracing.py --runs {runs} --write`
- processor: {cpu_model()}
- Python {platform.python_version()}, jax {jax.__version__}, meshax {mx.__version__}
- commit: {commit()}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=25, help="how often each is traced (%(default)s)")
    parser.add_argument("--write", action="store_true", help=f"write the result to {RESULT.relative_to(ROOT)}")
    parser.add_argument("--preset", default="", help="the training step of a preset; nothing is written then")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs is at least 1")
    if options.preset:
        seconds = fastest(options.runs, preset_cases(options.preset))
        for name, value in seconds.items():
            print(f"{name}: {value * 1e3:.0f} ms, {value / next(iter(seconds.values())):.2f} times by hand")
        return
    kinds = check_comparable()
    text = result(fastest(options.runs), kinds, options.runs)
    print(text, end="")
    if options.write:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
