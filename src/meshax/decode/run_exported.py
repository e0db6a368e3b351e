"""Writes on from tokens with programs that `meshax export --format stablehlo` wrote: an example, which needs only JAX.

python run.py 7 8 9 --tokens 20

It takes the likeliest token each time. The tokens are those of a prompt; of a model that writes a text from another,
those of its source, with the token that ends it, and the text begins with --begin. A program is a function of arrays:
the weights, then the cache, then what is listed under its name in exported.json; it returns what exported.json says.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Reads a file of the format safetensors: a header of JSON, its length before it, and bytes."""
    data = np.memmap(path, np.uint8, "r")
    begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
    dtypes = {"F32": jnp.float32, "BF16": jnp.bfloat16, "F16": jnp.float16}
    arrays = {}
    for name, entry in json.loads(data[8:begin].tobytes()).items():
        first, last = (begin + offset for offset in entry["data_offsets"])
        arrays[name] = data[first:last].view(dtypes[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def main() -> None:
    """Writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", type=int, nargs="+")
    parser.add_argument("--tokens", type=int, default=20)
    folder = Path(__file__).parent
    about = json.loads((folder / "exported.json").read_text())
    parser.add_argument("--begin", type=int, default=about.get("tokens", {}).get("begin", 0))
    asked = parser.parse_args()
    prompt = [asked.begin] if about["reads_sources"] else asked.prompt
    if len(prompt) + asked.tokens > about["places"]:
        parser.error(f"a text has at most {about['places']} tokens")

    axes, count = about["mesh"], math.prod(about["mesh"].values())
    if count > 1 and jax.default_backend() == "cpu" and len(jax.devices()) < count:
        parser.error(f"set XLA_FLAGS=--xla_force_host_platform_device_count={count}")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:count]).reshape(list(axes.values())), list(axes))

    def place(array: Any, described: Any) -> Any:
        split = [tuple(names) if isinstance(names, list) else names for names in described["split"]]
        return jax.device_put(np.asarray(array), NamedSharding(mesh, PartitionSpec(*split)))

    def load(name: str) -> Any:
        exported = jax.export.deserialize(bytearray((folder / about["programs"][name]["file"]).read_bytes()))
        first = len(about["weights"]["arrays"])
        return jax.jit(exported.call, donate_argnums=range(first, first + len(about["cache"])))

    def call(name: str, program: Any, cache: list[Any], **inputs: Any) -> list[Any]:
        described = about["programs"][name]["inputs"]
        return list(program(*weights, *cache, *(place(inputs[one["name"]], one) for one in described)))

    stored = read_weights(folder / about["weights"]["file"])
    weights = [place(stored[one["name"]], one) for one in about["weights"]["arrays"]]
    cache = [place(np.zeros(one["shape"], jnp.dtype(one["dtype"])), one) for one in about["cache"]]

    # The last token of a prompt is not read: it is the first that a step takes.
    before = asked.prompt if about["reads_sources"] else prompt[:-1]
    lengths = sorted(int(name.partition("-")[2]) for name in about["programs"] if name.startswith("prefill-"))
    fitting = [length for length in lengths if length >= len(before)]
    if not fitting:
        parser.error(f"there is no program for {len(before)} tokens, only for {lengths[-1]} and fewer")
    slots = about["slots"]  # this example writes one text, in the first slot
    tokens = np.zeros((slots, fitting[0]), np.int32)
    tokens[0, : len(before)] = before
    name = f"prefill-{fitting[0]}"
    taken = np.array([0] + [-1] * (slots - 1), np.int32)
    counts = np.array([len(before)] + [0] * (slots - 1), np.int32)
    names = ("sources", "source_lengths") if about["reads_sources"] else ("tokens", "lengths")
    cache = call(name, load(name), cache, taken=taken, **dict(zip(names, (tokens, counts), strict=True)))

    step, text = load("step"), list(prompt)
    for _ in range(asked.tokens):
        token, at = np.full(slots, text[-1], np.int32), np.full(slots, len(text) - 1, np.int32)
        logits, *cache = call("step", step, cache, token=token, at=at)
        text.append(int(np.asarray(logits)[0, : about["vocab"]].argmax()))
    print(json.dumps(text[len(prompt) :]))


if __name__ == "__main__":
    main()
