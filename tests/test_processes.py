"""Tensors over several processes: each has and reads its own part, and all agree."""

import json

import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.processes import LocalRows
from messages import pinned
from processes import run_processes
from runs import write_text

PLACED = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
import meshax as mx

mesh = mx.Mesh(sys.argv[1])
x = mx.tensor(np.arange(21, dtype=np.float32).reshape(7, 3), "batch hidden")
key, here = jax.random.key(3), jax.local_devices()[-1]
others = {
    "number": 2, "weak": jnp.asarray(2.0), "weak here": jax.device_put(jnp.asarray(2.0), here), "bool": True,
    "host": np.arange(5.0), "local": jnp.arange(4), "here": jax.device_put(jnp.arange(6), here),
    "key": key, "keys": jax.random.split(key, 3), "key here": jax.device_put(key, here),
}
traced = []

def noise(key, scale, x, others):
    traced.append(1)
    return x + mx.random.normal(key, x.dims) * scale, others

program = mx.spmd(noise, mesh, "batch:a hidden:b")
y, others = program(key, 0.5, x, others)
again, others = program(key, 0.5, y, others)
shown = {name: str(jax.typeof(value)) for name, value in others.items()}
two = mx.tensor(jnp.arange(14.0).reshape(7, 2), "batch two")
placed = mx.put({"jax": two, "keys": others["keys"]}, mesh, "batch:a")
moved = mx.put(again, mesh, "hidden:a batch:b")
values = mx.gather_to_host({"again": again, "moved": moved, "jax": placed["jax"], "plain": np.arange(2)})
words = jax.tree.map(lambda v: v.tolist(), values)
print(json.dumps([shown, words, len(traced), float(mx.spmd(lambda x: mx.sum(x), mesh, "batch:a")(x))]))
try:
    again.numpy()
except mx.MeshaxError as error:
    print(error)
"""


@pytest.mark.parametrize("processes", some([2, 4], 2))
def test_what_is_placed_over_processes_is_what_one_process_has(processes):
    whole, split = (run_processes(PLACED, number, "a:4 b:2") for number in (1, processes))
    assert {lines[0] for lines in split} == {whole[0][0]}
    shown, values, _, total = json.loads(whole[0][0])
    assert shown["weak"] == shown["weak here"] == "~float32[]" and shown["number"] == "~int32[]"
    assert values["again"] == values["moved"] and np.shape(values["again"]) == (7, 3)
    assert values["jax"] == np.arange(14.0).reshape(7, 2).tolist() and total == 210
    assert whole[0][1:] == []
    assert split[0][1:] == [
        "no process has the whole of a tensor that is split over several.",
        "  values: Tensor[batch:7, hidden:3] float32 ...",
        "  fix: let all processes call mx.gather_to_host(x) together; or look at its .array.addressable_shards.",
    ]


ROWS = """
import json, sys
import jax, numpy as np
import meshax as mx
from meshax.processes import LocalRows

whole = {"tokens": np.arange(70).reshape(10, 7), "weights": np.arange(10.0)}
shapes = {"tokens": mx.tensor(whole["tokens"], "batch length"), "weights": mx.tensor(whole["weights"], "batch")}
for mesh, layout in json.loads(sys.argv[1]):
    local = LocalRows(shapes, mx.Mesh(mesh), layout)
    batch = local.put({name: array[list(local.rows)] for name, array in whole.items()})
    expected = mx.put(shapes, mx.Mesh(mesh), layout)
    for name, x in batch.items():
        assert x.array.sharding == expected[name].array.sharding and x.dtype == expected[name].dtype
        for one, other in zip(x.array.addressable_shards, expected[name].array.addressable_shards, strict=True):
            assert one.index == other.index and (np.asarray(one.data) == np.asarray(other.data)).all()
    assert (mx.gather_to_host(batch)["tokens"] == whole["tokens"]).all()
    print(json.dumps(local.rows))
"""
ALL = list(range(10))
READ = {  # the mesh, the layout, and the rows that the first and the second of two processes read
    "each its own": ("data:8", "batch:data", ALL[:8], ALL[8:]),
    "padding in the last": ("data:2 model:4", "batch:data", ALL[:5], ALL[5:]),
    "all the same": ("model:2 data:4", "batch:data", ALL, ALL),
    "other dims too": ("data:4 model:2", "batch:data length:model", ALL[:6], ALL[6:]),
    "other dims alone": ("data:8", "length:data", ALL, ALL),
    "not split": ("data:8", "", ALL, ALL),
    "not one stretch": ("a:2 b:2 c:2", "batch:c+a", [0, 1, 2, 6, 7, 8], [3, 4, 5, 9]),
}


def test_a_process_reads_the_rows_that_its_devices_hold():
    lines = run_processes(ROWS, 2, json.dumps([case[:2] for case in READ.values()]))
    for number, (name, (_, _, *expected)) in enumerate(READ.items()):
        assert [json.loads(process[number]) for process in lines] == expected, name


TRAINED = """
import hashlib, json, sys
from pathlib import Path
import jax, numpy as np
import meshax as mx
from meshax.train.loop import Run
from runs import small

folder, out, mesh, layout, *every = sys.argv[1:]
sizes = dict(batch=8, length=16, eval_batches=2, eval_every=2, save_every=2)
for steps in map(int, every):  # the second goes on from the first's checkpoint
    run = Run(small(Path(folder), mesh=mesh, layout=layout, out=out, steps=steps, **sizes))
    result = run.train()
state, extra = run.restored()
digest = hashlib.sha256()
for leaf in jax.tree.leaves(mx.gather_to_host(state)):
    digest.update(np.asarray(leaf).tobytes())
print(json.dumps([run.local.rows, result.loss, digest.hexdigest(), extra["data"]["position"]]))
"""
LAYOUTS = [("data:8", "data"), ("data:2 model:4", "data+model"), ("data:4 model:2", "fsdp"), ("model:8", "model")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("mesh", "layout"), LAYOUTS)
def test_a_run_over_processes_is_that_of_one_process_bit_for_bit(tmp_path, mesh, layout):
    """One process with 8 devices, which sums by Gloo as the others do, two with 4, four with 2: equal states."""
    write_text(tmp_path / "text", files=3, lines=40)
    words = []
    for number in (1, 2, 4):
        lines = run_processes(TRAINED, number, tmp_path, f"run{number}", mesh, layout, 2, 3, timeout=600)
        words.append([json.loads(one[-1]) for one in lines])
    [alone] = words[0]
    for together in words[1:]:
        assert {json.dumps(one[1:]) for one in together} == {json.dumps(alone[1:])}
        assert sorted({row for one in together for row in one[0]}) == alone[0] == list(range(8))


def _local():
    return LocalRows({"x": mx.tensor(np.zeros((4, 3)), "batch hidden")}, mx.Mesh("data:2"), "batch:data")


test_messages = pinned(
    {
        "rows of another number": (
            mx.ArgumentError,
            lambda: _local().put({"x": np.zeros((2, 3))}),
            """
            'x' has the shape (2, 3) in this process, not (4, 3).
              rule: a process has those rows of a batch that its devices hold.
              fix: read the rows that .rows names: Batches(..., rows=local.rows).
            """,
        )
    }
)
