"""The bytes that a training step sends, under every layout: ours, GSPMD's of the same model, and the least there is.

    python benchmarks/wire.py                   # 8 virtual processors, as compiled for CPUs
    python benchmarks/wire.py --processors 512  # ours as traced, GSPMD's as compiled
    python benchmarks/wire.py --mesh-tensorflow # ours beside its own counters
    python benchmarks/wire.py --write           # all tables, into benchmarks/results/wire.md

Ours is the decoder of `meshax.models`; GSPMD's is the same model by hand (`meshax.bench.plain_jax`) under `jax.jit`,
with the sharding of parameters, batch and activations given. Both compute the same losses. Bytes are what one processor
sends in a ring: an all-reduce of s bytes over n processors sends 2 s (n - 1) / n, an all-gather to s bytes, a
reduce-scatter of s and an all-to-all of s send s (n - 1) / n.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

BATCH, LENGTH = 16, 64
D_MODEL, HEADS, D_KV, D_FF, LAYERS, VOCAB = 128, 8, 16, 512, 2, 1024
RESULTS = Path(__file__).parent / "results" / "wire.md"


@dataclass(frozen=True)
class Case:
    """A layout, on a mesh of so many processors."""

    name: str
    data: int
    model: int
    rules: str
    params: str = ""
    optimizer: str = ""
    rings: str = ""
    scale: int = 1  # of the batch, so that each processor has an example

    @property
    def mesh(self):
        return f"data:{self.data} model:{self.model}"

    def axes(self, names, stored=False):
        """The mesh axes of each of some dims, as a partition spec's parts."""
        words = f"{self.rules} {self.params if stored else ''}".split()
        rules = {}
        for dim, _, axes in (word.partition(":") for word in words):
            rules[dim] = (*rules.get(dim, ()), *axes.split("+"))
        return [rules.get(name) for name in names.split()]


TENSOR = "heads:model d_ff:model vocab:model"


def cases(processors):
    """Every layout for so many processors; along the axis model there are at most as many as heads."""
    data = max(2, processors // HEADS)
    both = dict(data=data, model=processors // data, scale=max(1, data // BATCH))
    all_data = dict(data=processors, model=1, scale=max(1, processors // BATCH))
    sharded = dict(rules="batch:data", params="d_model:data", optimizer="d_model:data", **all_data)
    rings = [Case("fully sharded, gradients in rings", rings="data", **sharded)] if processors <= 64 else []
    return [
        Case("data", rules="batch:data", **all_data),
        Case("model", 1, HEADS, TENSOR),
        Case("data and model", rules=f"batch:data {TENSOR}", **both),
        Case("fully sharded", **sharded),
        *rings,
        Case("ZeRO-1", rules="batch:data", optimizer="d_model:data", **all_data),
        Case("sequence", rules=f"batch:data length:model {TENSOR}", **both),
    ]


# ------------------------------------------------------------------------------------------------- the least there is


def least(case):
    """The least bytes that a processor can send in a step, by a formula in words, and its terms."""
    d, m = case.data, case.model
    layer = 4 * D_MODEL * HEADS * D_KV + 2 * D_MODEL * D_FF
    tables, norms = 2 * VOCAB * D_MODEL, (2 * LAYERS + 1) * D_MODEL
    weights = 4 * (LAYERS * layer + tables + norms)
    local = 4 * ((LAYERS * layer + tables) / m + norms)
    tokens = BATCH * case.scale // d * LENGTH  # of one processor
    stream = 4 * tokens * D_MODEL
    reduce = lambda size, n: 2 * size * (n - 1) / n  # noqa: E731
    once = lambda size, n: size * (n - 1) / n  # noqa: E731
    loss = reduce(4, d)
    if case.name == "data":
        return "gradients all-reduced", reduce(weights, d) + loss
    if case.name == "ZeRO-1":
        return "gradients reduce-scattered, parameters all-gathered", 2 * once(weights, d) + loss
    if case.name.startswith("fully sharded"):
        table = 4 * VOCAB * D_MODEL
        rows = 2 * once(stream, d) + once(4 * tokens * d, d)
        layers = 4 * LAYERS * layer
        words = "layers all-gathered twice, the rest once, all gradients reduce-scattered; of the embedding the rows"
        return words, 3 * once(layers, d) + 2 * once(table + 4 * norms, d) + min(rows, 2 * once(table, d)) + loss
    # per layer: what attention and feed-forward give is summed, and in the backward pass what flows into both; once
    # more for the embedding and for what flows back from the logits; three numbers a token for the softmax
    activations = (4 * LAYERS + 2) * reduce(stream, m) + 3 * reduce(4 * tokens, m)
    words = f"{4 * LAYERS + 2} sums of the stream, 3 numbers a token"
    if case.name == "model":
        return words, activations
    words += "; gradients all-reduced over data"
    if case.name == "data and model":
        return words, activations + reduce(local, d) + loss
    # a sum of the stream is a reduce-scatter and an all-gather there, as many bytes; every processor of a row needs
    # all its tokens and targets, and norms see other tokens everywhere
    ids = 2 * once(4 * tokens, m)
    return f"{words} (of norms over all); 2 integers a token", (
        activations + ids + reduce(local - 4 * norms, d) + reduce(4 * norms, d * m) + loss
    )


# -------------------------------------------------------------------------------------------------- ours and GSPMD's


def sent(collectives):
    """The bytes that compiled collectives send."""
    from meshax.plan.reading.communication import wire_bytes

    return sum(c.count * wire_bytes(c.kind, c.bytes, c.group or 2) for c in collectives)


def model_config():
    from meshax.models.decoder import DecoderConfig

    return DecoderConfig(
        d_model=D_MODEL, heads=HEADS, d_kv=D_KV, d_ff=D_FF, layers=LAYERS, vocab=VOCAB,
        dtype="float32", keep="everything", layers_as="unrolled",
    )  # fmt: skip


def our_program(case, abstract=False, topology=None):
    """Our step and its arguments."""
    import jax
    import jax.numpy as jnp

    import meshax as mx
    from meshax.optim import by_name

    config = model_config()
    batch, length = mx.dims(batch=BATCH * case.scale, length=LENGTH)
    shape = mx.Tensor(jax.ShapeDtypeStruct((batch.size, LENGTH), jnp.int32), (batch, length))
    optimizer = by_name("sgd", 0.1)
    model = jax.eval_shape(lambda: config.make(jax.random.key(0)))

    def loss(model, tokens, targets):
        each = mx.softmax_cross_entropy(model(tokens), targets.rename(length="positions"), over="vocab")
        return mx.mean(each)

    def step(model, state, tokens, targets):
        value, grads = mx.value_and_grad(loss)(model, tokens, targets)
        return *optimizer.apply(grads, state, model), value

    state = jax.eval_shape(optimizer.init, model)
    layout = mx.Layout(case.rules, params=case.params, optimizer=case.optimizer, rings=case.rings)
    program = mx.spmd(step, mx.Mesh(case.mesh, abstract=abstract, topology=topology), layout, donate=(0, 1))
    return program, (model, state, shape, shape)


def ours(case, abstract, topology):
    from meshax.plan.compile.hlo import compiled_collectives

    program, args = our_program(case, abstract, topology)
    if abstract:
        return program.explain(*args).wire_bytes
    return sent(compiled_collectives(program.compile(*args).as_text()))


def gspmd(case, topology):
    """The same model by hand, divided by `jax.jit`."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    import meshax as mx
    from meshax.bench import plain_jax
    from meshax.plan.compile.hlo import compiled_collectives

    devices = mx.Mesh(case.mesh, topology=topology).jax_mesh.devices
    mesh = jax.sharding.Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    sharding = lambda dims, stored=False: NamedSharding(mesh, PartitionSpec(*case.axes(dims, stored)))  # noqa: E731
    at = lambda x, dims: jax.lax.with_sharding_constraint(x, sharding(dims))  # noqa: E731
    keep = "nothing" if case.params else "everything"  # or what was gathered would stay for the backward pass
    model = plain_jax.like(model_config(), at=at, keep=keep)
    if case.params:
        model = replace(model, at=lambda x, dims: x if dims == "vocab d_model" else at(x, dims))
    names = plain_jax.dims(LAYERS)
    placed = jax.tree.map(lambda dims: sharding(dims, stored=True), names)
    sliced = jax.tree.map(lambda dims: NamedSharding(mesh, PartitionSpec(*_zero(case, dims))), names)

    def step(w, tokens, targets):
        value, grads = jax.value_and_grad(model.loss)(w, tokens, targets)
        if case.optimizer and not case.params:
            grads, w = (jax.lax.with_sharding_constraint(tree, sliced) for tree in (grads, w))
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value

    w = jax.eval_shape(model.init, jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((BATCH * case.scale, LENGTH), jnp.int32)
    data = sharding("batch length")
    whole = NamedSharding(mesh, PartitionSpec())
    jitted = jax.jit(step, in_shardings=(placed, data, data), out_shardings=(placed, whole), donate_argnums=0)
    return sent(compiled_collectives(jitted.lower(w, tokens, tokens).compile().as_text()))


def _zero(case, names):
    axes = case.axes(names)
    return ["data" if name == "d_model" else axis for name, axis in zip(names.split(), axes, strict=True)]


def table(processors, topology=None):
    """Prints a table, line by line."""
    head = [
        "| layout | mesh | ours | the least | GSPMD | ours / least | ours / GSPMD | the least, in words |",
        "|" + "---|" * 8,
    ]
    print(*head, sep="\n", flush=True)
    for case in cases(processors):
        words, fewest = least(case)
        mine, theirs = ours(case, processors > 8, topology), gspmd(case, topology)
        print(
            f"| {case.name} | {case.mesh} | {mine:,.0f} | {fewest:,.0f} | {theirs:,.0f} | {mine / fewest:.3f} | "
            f"{mine / theirs:.3f} | {words} |",
            flush=True,
        )


def mesh_tensorflow_table():
    """Prints what is all-reduced in a step of the programs of which we have Mesh-TensorFlow's counters."""
    path = Path(__file__).parents[1] / "tests" / "golden" / "test_mesh_tensorflow.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    golden = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = golden
    spec.loader.exec_module(golden)
    print("| program | mesh | layout | ours | Mesh-TensorFlow | ours / its |", "|" + "---|" * 6, sep="\n")
    for run in golden.RUNS:
        theirs = sum(run["allreduce_elements_per_processor"].values())
        if theirs:
            mine = sum(golden.elements_all_reduced(run).values())
            words = f"| {run['case']} | {run['mesh']} | {run['layout']} |"
            print(f"{words} {mine:,} | {theirs:,} | {mine / theirs:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processors", type=int, default=8)
    parser.add_argument("--topology", help='compile for TPUs or GPUs that are not there: "tpu v5p:2x2x2", "gpu h200:8"')
    parser.add_argument("--mesh-tensorflow", action="store_true", help="beside the counters of Mesh-TensorFlow")
    parser.add_argument("--write", action="store_true", help="write all tables into benchmarks/results/wire.md")
    options = parser.parse_args()
    if options.processors < 8 or options.processors % 8:
        parser.error(f"--processors {options.processors}: the layouts need a multiple of 8")
    if options.write:
        RESULTS.write_text("\n".join([HEAD.format(versions=versions()), *tables()]), encoding="utf-8")
        return
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.processors}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"} if options.topology else {}
    if options.processors > 128:
        globals()["D_MODEL"] = options.processors  # or there are not enough slices of it
    if options.mesh_tensorflow:
        mesh_tensorflow_table()
    else:
        from meshax.errors import MeshError  # JAX starts with what is set above

        try:
            table(options.processors, options.topology)
        except MeshError as error:  # no such topology, or no compiler for it
            parser.error(str(error))


def tables():
    """All tables, each made in a process of its own: JAX has as many devices as it starts with."""
    runs = {"8 processors": [], "512 processors": ["--processors", "512"]}
    if importlib.util.find_spec("libtpu"):
        runs["8 TPUs v5p"] = ["--topology", "tpu v5p:2x2x2"]
    if importlib.util.find_spec("jax_cuda12_plugin"):
        runs["8 GPUs H200"] = ["--topology", "gpu h200:8"]
    runs[MESH_TENSORFLOW] = ["--mesh-tensorflow"]
    for title, options in runs.items():
        done = subprocess.run([sys.executable, __file__, *options], stdout=subprocess.PIPE, text=True, check=True)
        yield f"## {title}\n\n{done.stdout.strip()}\n"


def versions():
    return f"jax {importlib.metadata.version('jax')}"


MESH_TENSORFLOW = """Beside Mesh-TensorFlow

Elements that one processor all-reduces in a step, by its own counters (version 0.1.21), of the two programs that
`tests/golden` trains as it did."""
HEAD = """# The bytes of a training step

`python benchmarks/wire.py --write`, {versions}: what one processor sends in a step of the decoder that
[wire.py](../wire.py) describes (2 layers, d_model 128, 8 heads, vocabulary 1,024, examples of 64 tokens, float32, plain
gradient descent): ours, the least there is, and the same model by hand under `jax.jit` (GSPMD).

Of 8 processors, both as compiled for CPUs; of 512, ours as traced, and d_model is 512. XLA for CPUs leaves GSPMD an
all-reduce and a slice where its compilers for TPUs and GPUs make a reduce-scatter. The compiler for TPUs does more of
its own: it sends in bfloat16 what only products read (sequence; all parameters, where their gradients go around in
rings), and makes one all-reduce of reduce-scatters that are as small as these (ZeRO-1, of both, and the gradients of
what is fully sharded, but not in rings).

Fully sharded, the least is that of processors which never hold the whole model, and so gather the layers twice. XLA for
CPUs may join the two where layers are as small as these, and hold them: with jax 0.10.2 ours sends 3,792,775 bytes in
that row, 0.734 of the least. The row `model` is on 8 processors in both tables.
"""

if __name__ == "__main__":
    main()
