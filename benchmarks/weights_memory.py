"""The memory of reading weights from elsewhere: of `meshax.weights.load` on 8 processors, and of `meshax import`.

Makes a folder of a random Llama, and reads it in fresh processes. Counted is memory that is the process's own
(RssAnon of /proc): pages of a file that is mapped belong to the system, which takes them back when it needs them.

    python benchmarks/weights_memory.py
"""

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

TOKENIZER = Path(__file__).parents[1] / "tests/golden/hugging_face/llama/tokenizer.json"
LAYOUT = "d_model:data+model"  # splits every parameter over all 8


def make_folder(folder):
    """Writes a Llama of 285 million parameters in bfloat16."""
    from meshax.models.presets import preset
    from meshax.weights import FAMILIES
    from meshax.weights.safetensors import DTYPES, Entry, write_file

    sizes = dict(d_model=1024, heads=16, kv_heads=8, d_kv=64, d_ff=4096, layers=16, vocab=16384)
    model, family = replace(preset("modern-0.1b").model, **sizes), FAMILIES["llama"]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(family.config(model, "bfloat16")))
    (folder / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    entries = {name: Entry("BF16", places[0].shape()) for name, places in family.places(model).items()}
    draw = np.random.default_rng(0)

    def random(name):
        return draw.standard_normal(entries[name].shape, np.float32).astype(DTYPES["BF16"])

    write_file(folder / "model.safetensors", entries, random, {"format": "pt"})


def own_bytes():
    return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


def measure(what, folder):
    """Reads the folder, and prints the peak above what the process had before."""
    import jax

    jax.config.update("jax_num_cpu_devices", 8)
    import meshax as mx
    from meshax.train.config import TrainConfig
    from meshax.train.foreign import import_folder
    from meshax.weights import Folder, load

    mesh = mx.Mesh("data:2 model:4")
    mx.put(mx.tensor(np.zeros(8, np.float32), "d_model"), mesh, LAYOUT)
    before, peak, is_done = own_bytes(), [0], threading.Event()

    def watch():
        while not is_done.is_set():
            peak[0] = max(peak[0], own_bytes())
            time.sleep(0.001)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    shards, largest = 0, max(entry.num_bytes for entry in Folder(folder).tensors.values())
    if what == "import":
        import_folder(folder, TrainConfig(out=str(folder.parent / "run"), batch=8))
    else:
        leaves = jax.tree.leaves(load(folder, mesh, LAYOUT, layers_as=what))
        shards = sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards)
        largest = max(leaf.nbytes for leaf in leaves)
    is_done.set()
    thread.join()
    print(f"{what:9} shards {shards / 1e6:7.1f} MB, largest tensor {largest / 1e6:6.1f} MB, ", end="")
    print(f"peak above the shards {(peak[0] - before - shards) / 1e6:6.1f} MB")


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(sys.argv[1], Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            make_folder(Path(temporary) / "llama")
            for what in ("loop", "unrolled", "import"):
                subprocess.run([sys.executable, __file__, what, f"{temporary}/llama"], check=True)
