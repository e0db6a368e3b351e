"""Reports as `Report.as_dict` makes them, written down by hand: small, empty and large."""

SOURCE = """\
import jax
import meshax as mx

batch, pixels, hidden, classes = mx.dims(batch=128, pixels=784, hidden=1024, classes=10)


def loss(w, images, labels):
    h = mx.relu(mx.einsum(images, w["in"], out=(batch, hidden)))
    logits = mx.einsum(h, w["out"], out=(batch, classes))
    return mx.mean(mx.softmax_cross_entropy(logits, labels, over=classes))


def step(w, images, labels):
    value, grads = mx.value_and_grad(loss)(w, images, labels)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value
""".splitlines()


def collective(kind, axes, shape, wire_bytes, line, phase="forward", count=1, op="einsum"):
    return {
        **{"kind": kind, "axes": axes.split("+"), "shape": shape, "dtype": "float32", "wire_bytes": wire_bytes},
        **{"bytes": 4, "count": count, "phase": phase, "line": line, "op": op, "scope": f"jvp({op})"},
        "seconds": {"h200": count * 2e-6, "tpu-v2": count * 4e-6},
        "hidden_seconds": {"h200": 0.0, "tpu-v2": count * 1e-6},
    }


def work(line, op, flops, compute=0.0, memory=0.0, phase="forward"):
    seconds = {"h200": {"compute": compute, "memory": memory}, "tpu-v2": {"compute": 0.0, "memory": 9 * memory}}
    return {"line": line, "op": op, "phase": phase, "flops": flops, "bytes": 4, "count": 1, "seconds": seconds}


def dim(name, size, axes="", processors=1):
    return {"name": name, "size": size, "axes": axes.split("+") if axes else [], "block": -(-size // processors)}


def tensor(name, *dims, kind="argument", role=None, size=802_816):
    return {"name": name, "kind": kind, "role": role, "dtype": "float32", "dims": list(dims), "bytes": size}


def time_of(compute, memory, communication):
    parts = {"compute": compute, "memory": memory, "communication": communication, "hidden": communication / 4}
    parts["exposed"] = 3 * communication / 4
    return {**parts, "total": compute + memory + parts["exposed"], "assumes": "some of it overlaps"}


def report(**changes):
    """What `Report.as_dict` returns for the classifier above, on 2 x 4 processors."""
    collectives = [
        collective("all-reduce", "rows", [784, 256], 802_816, "step.py:15", "backward", op=""),
        collective("all-reduce", "rows", [256, 10], 10_240, "step.py:15", "backward", op=""),
        collective("all-gather", "cols", [64, 256], 196_608, "step.py:8", count=3, op="relu"),
        collective("all-reduce", "cols", [64, 10], 3_840, "step.py:10", op="softmax_cross_entropy"),
        collective("permute", "rows+cols", [], 4, "elsewhere.py:3", "update", op="shift"),
    ]
    return {
        "program": "step",
        "mesh": {"rows": 2, "cols": 4},
        "layout": 'Layout("batch:rows hidden:cols")',
        "overlap": True,
        "collectives": collectives,
        "wire_bytes": sum(c["wire_bytes"] * c["count"] for c in collectives),
        "flops": 77_397_016,
        "duplicated_flops": 245_760,
        "duplicates": [
            {"line": "step.py:9", "op": "einsum", "axes": ["cols"], "flops": 327_680, "share": 0.75},
        ],
        "work": [
            work("step.py:8", "einsum", 25_690_112, compute=3e-6),
            work("step.py:8", "relu", 0, memory=1e-6),
            work("step.py:9", "einsum", 327_680, memory=2e-6),
            work("step.py:14", "einsum", 51_380_224, compute=5e-6, phase="backward"),
            work("step.py:15", "", 0, memory=1e-6, phase="update"),
        ],
        "memory": {
            **{"parameters": 813_056, "optimizer": 0, "gradients": 813_056, "activations": 266_752},
            **{"temporaries": 133_632, "inputs": 200_960, "results": 813_060, "peak": 3_040_516},
        },
        "padding": {"classes": {"size": 10, "stored": 12, "waste": 1 / 6}},
        "unused_rules": ["vocab:model", "rings cols"],
        "replicated": [
            {"name": "w['in']", "dims": "[pixels:784, hidden:1024/cols]", "bytes": 802_816, "axes": ["rows"]},
        ],
        "tensors": [
            tensor("w['in']", dim("pixels", 784), dim("hidden", 1024, "cols", 4), role="param"),
            tensor("w['out']", dim("hidden", 1024, "cols", 4), dim("classes", 10), role="param", size=10_240),
            tensor("images", dim("batch", 128, "rows", 2), dim("pixels", 784), size=200_704),
            tensor("labels", dim("batch", 128, "rows", 2), size=256),
            tensor("h", dim("batch", 128, "rows", 2), dim("hidden", 1024, "cols", 4), kind="inside", size=65_536),
            tensor("uneven", dim("classes", 10, "cols", 4), dim("batch", 128), kind="inside", size=1536),
            tensor("mixed", dim("batch", 128, "rows+cols", 8), kind="inside", size=64),
            tensor("few", dim("classes", 3, "rows+cols", 8), kind="inside", size=4),
            tensor("loss", kind="result", size=4),
        ],
        "time": {"h200": time_of(8e-6, 4e-6, 14e-6), "tpu-v2": time_of(0.0, 36e-6, 28e-6)},
        "sources": {"step.py": {"first": 1, "lines": SOURCE}},
        **changes,
    }


EMPTY = report(
    **{"collectives": [], "wire_bytes": 0, "flops": 0, "duplicated_flops": 0, "duplicates": [], "work": []},
    **{"padding": {}, "unused_rules": [], "replicated": [], "tensors": [], "time": {}, "sources": {}},
    memory={"parameters": 0, "peak": 0},
)
LARGE = report(
    mesh={"rows": 32, "cols": 16},
    tensors=[
        tensor("both", dim("batch", 1024, "rows", 32), dim("hidden", 4096, "cols", 16)),
        tensor("rows", dim("batch", 1000, "rows", 32)),
    ],
)
HOSTILE = "</script><b>hostile</b><img src=x onerror=hacked=1><!--"
