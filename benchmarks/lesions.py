"""What shrinking a volume costs, and what a whole one takes: the figure of docs/giant_images.md.

    python benchmarks/lesions.py train RESULT.json [--small]   on a GPU, four minutes: 32, 64 and 128 voxels a side
    python benchmarks/lesions.py plan MEMORY.json              with the TPU compiler: one volume of 512 x 512 x 512
    python benchmarks/lesions.py draw RESULT.json MEMORY.json  draws docs/images/lesions.svg

`train` trains one U-Net for each resolution on the same synthetic cases, with equally many steps, and lets it label
cases that it has not seen. Every prediction is enlarged to the finest resolution and compared with the truth there:
that is where a lesion is, whatever a network was shown. Scores are of small lesions (cases from which larger ones are
left out), of all lesions, and of the liver.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from meshax.data.synthetic_ct import LESION, Case, draw_case, make_block

SMALL_RADIUS = 0.03  # of the side: less than a voxel at 32, less than four at 128
LOW, HIGH = -160.0, 240.0
CLASSES = np.array((0, 0, 0, 1, 2), np.uint8)
HELD_OUT = 1_000_000
MESHAX = [sys.executable, "-m", "meshax"]
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "lesions.svg"
MESHES = {  # a core alone is one of many that all hold everything
    "v3": (("1", "2x2", "rows:2 cols:4", ""), ("4", "2x2", "copies:2 rows:2 cols:2", "x:rows y:cols"),
           ("8", "2x2", "rows:2 cols:4", "x:rows y:cols"), ("16", "2x4", "rows:4 cols:4", "x:rows y:cols"),
           ("32", "4x4", "rows:4 cols:8", "x:rows y:cols")),
    "v5p": (("1", "2x2x1", "rows:2 cols:2", ""), ("4", "2x2x1", "rows:2 cols:2", "x:rows y:cols"),
            ("8", "2x2x2", "rows:2 cols:4", "x:rows y:cols"), ("16", "2x2x4", "rows:4 cols:4", "x:rows y:cols"),
            ("32", "2x4x4", "rows:4 cols:8", "x:rows y:cols")),
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """What is trained, at each resolution alike."""

    sizes: tuple[int, ...] = (128, 64, 32)
    cases: int = 160
    held_out: int = 24
    steps: int = 1000
    seconds: float = 65.0  # of the finest resolution, at most: it says how many steps all of them take
    batch: int = 2
    levels: int = 4
    filters: int = 16
    rate: float = 5e-3
    class_weights: str = "1 2 4"
    dice_part: float = 0.5
    compiler_options: tuple[str, ...] = ()


SMALL = Trial(sizes=(16, 8), cases=4, held_out=2, steps=3, levels=2, filters=4)


def only_small(case: Case) -> Case:
    """Returns a case without its larger lesions."""
    return replace(case, shapes=tuple(s for s in case.shapes if s.label != LESION or max(s.radii) < SMALL_RADIUS))


def volume(number: int, size: int, is_small: bool) -> tuple[np.ndarray, np.ndarray]:
    """Makes a case: its image, between -2 and 2, and its labels."""
    case = draw_case(0, number)
    image, labels = make_block(only_small(case) if is_small else case, (size,) * 3)
    image = np.clip((image - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2), -2, 2)
    return image.astype(np.float32), CLASSES[labels]


def volumes(numbers: range, size: int, is_small: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Makes cases, on all cores."""
    with ProcessPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        several = list(pool.map(partial(volume, size=size, is_small=is_small), numbers))
    images, labels = zip(*several, strict=True)
    return np.stack(images), np.stack(labels)


def overlap(said: np.ndarray, truth: np.ndarray, label: int) -> float:
    """Returns the Dice of a class over all cases together."""
    each = int((said == label).sum() + (truth == label).sum())
    return float(2 * ((said == label) & (truth == label)).sum() / each) if each else 1.0


def train(trial: Trial, data: dict[str, Any], size: int, steps: int, held: dict[str, Any]) -> dict[str, Any]:
    """Trains at one resolution and scores at the finest; of no steps, as many as there is time for."""
    import jax
    import jax.numpy as jnp

    import meshax as mx
    from meshax.models.unet import UNetConfig
    from meshax.optim import by_name, clipped
    from meshax.optim.schedules import by_name as schedule
    from meshax.program import put
    from meshax.train.step import compiler_options, init_state, make_train_step

    config = UNetConfig(
        levels=trial.levels, filters=trial.filters, dropout=0.0, keep="everything",
        class_weights=trial.class_weights, dice_part=trial.dice_part,
    )  # fmt: skip
    mesh = mx.Mesh("one:1")
    options = compiler_options(mesh, trial.compiler_options)
    dims = config.batch({"batch": trial.batch, "x": size, "y": size, "z": size})["image"].dims
    images, labels = (jnp.asarray(x) for x in data[size])
    rng, key = np.random.default_rng(0), put(jax.random.key(2), mesh, "")

    @jax.jit
    def changed(images: Any, labels: Any, chosen: Any, scale: Any, shift: Any) -> tuple[Any, Any]:
        by_row = lambda x: x[:, None, None, None]  # noqa: E731
        return (images[chosen] * by_row(scale) + by_row(shift))[..., None], labels[chosen].astype(jnp.int32)

    def batches() -> Any:
        order: list[int] = []
        while True:
            if len(order) < trial.batch:
                order = list(rng.permutation(trial.cases))
            chosen, order = np.array(order[: trial.batch]), order[trial.batch :]
            scale, shift = (rng.uniform(a, b, trial.batch).astype(np.float32) for a, b in ((0.9, 1.1), (-0.1, 0.1)))
            image, truth = changed(images, labels, chosen, scale, shift)
            weights = jnp.ones(truth.shape, jnp.float32)
            yield {"image": mx.tensor(image, dims), "labels": mx.tensor(truth, dims[:-1]),
                   "weights": mx.tensor(weights, dims[:-1])}  # fmt: skip

    stream = batches()

    def program(count: int) -> tuple[Any, Any]:
        optimizer = clipped(by_name("adamw", schedule("cosine", trial.rate, count, count // 20 + 1)), 1.0)
        step = mx.spmd(make_train_step(optimizer), mesh, "", 0, options)
        state = mx.spmd(lambda: init_state(config.make, optimizer, jax.random.key(0)), mesh, "")()
        return step, state

    def run(step: Any, state: Any, count: int) -> tuple[Any, float]:
        for _ in range(count):
            state, measured = step(state, next(stream), key)
        return state, float(measured["loss"])

    step, state = program(steps or trial.steps)
    state, _ = run(step, state, 1)  # compiles
    begin = time.perf_counter()
    if not steps:
        state, _ = run(step, state, (tried := min(10, trial.steps - 1)))
        each = (time.perf_counter() - begin) / tried
        if (steps := min(trial.steps, max(3, int(trial.seconds / each)))) < trial.steps:
            step, state = program(steps)  # the rate depends on their number
    state, loss = run(step, state, max(steps - int(state.step), 1))
    seconds = time.perf_counter() - begin
    label = mx.spmd(lambda model, image: mx.argmax(model(image), over="classes"), mesh, "", (), options)
    one = (mx.Dim("batch", 1), *dims[1:])
    finest = max(trial.sizes)
    scores = {}
    for name, (shown, truth) in held.items():
        said = [label(state.model, mx.tensor(image[None, ..., None], one)).numpy()[0] for image in shown[size]]
        enlarged = np.stack(said)
        for side in (1, 2, 3):
            enlarged = enlarged.repeat(finest // size, side)
        scores[name] = overlap(enlarged, truth, 2)
        scores["liver"] = overlap(enlarged, truth, 1)
    return {"size": size, **scores, "loss": loss, "steps": steps, "seconds": seconds,
            "device": jax.devices()[0].device_kind, "jax": jax.__version__}  # fmt: skip


def train_all(trial: Trial, path: Path) -> None:
    """Trains at every resolution, the finest first, and writes what there is after each."""
    data = {size: volumes(range(trial.cases), size) for size in trial.sizes}
    numbers, held = range(HELD_OUT, HELD_OUT + trial.held_out), {}
    for name, is_small in (("small", True), ("lesions", False)):
        several = {size: volumes(numbers, size, is_small) for size in trial.sizes}
        held[name] = {size: images for size, (images, _) in several.items()}, several[max(trial.sizes)][1]
    rows: list[dict[str, Any]] = []
    for size in trial.sizes:
        rows.append(train(trial, data, size, rows[0]["steps"] if rows else 0, held))
        print(json.dumps(rows[-1]), flush=True)
        write(path, {"trial": asdict(trial), "rows": rows})


def plan(seconds: float) -> dict[str, Any]:
    """Asks the TPU compiler for the memory of a processor, and the trace for that and for what is sent."""
    rows = []
    for kind, meshes in MESHES.items():
        for count, topology, mesh, layout in meshes:
            what = ["--preset", "unet3d-512", "--mesh", mesh, "--layout", layout or "none", "--json"]
            said = subprocess.run(
                [*MESHAX, "explain", *what, "--hardware", f"tpu-{kind}"], capture_output=True, check=True
            )
            traced = json.loads(said.stdout)
            rows.append({
                "kind": kind, "processors": int(count), "mesh": mesh, "layout": layout,
                "compiler_bytes": compiler_bytes([*what, "--topology", f"tpu {kind}:{topology}"], seconds),
                "traced_bytes": traced["memory"]["peak"], "sent_bytes": traced["wire_bytes"],
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    versions = {name: version(name) for name in ("jax", "jaxlib", "libtpu")}
    return {"command": "python benchmarks/lesions.py plan", "versions": versions, "rows": rows}


def compiler_bytes(what: list[str], seconds: float) -> int | None:
    """Returns what the compiler gives to buffers on a processor, whether it fits or not; None, if not in time.

    The compiler decides that long before it has written all the code, and dumps it: the plan is not waited for.
    """
    with tempfile.TemporaryDirectory() as folder:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={folder} --xla_dump_hlo_as_text"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*MESHAX, "plan", *what], env={**os.environ, "XLA_FLAGS": flags}, **quiet)
        end, size = time.monotonic() + seconds, None
        try:
            while size is None and time.monotonic() < end:
                has_ended = process.poll() is not None
                size = assigned_bytes(Path(folder))
                if has_ended:
                    break
                time.sleep(1)
        finally:
            process.terminate()  # and it ends the compiler
            process.wait()
    return size


def assigned_bytes(folder: Path) -> int | None:
    """Returns the bytes that a dump of XLA's compiler says all buffers of a training step take; None: there is none."""
    for path in folder.glob("*.jit__run*.after_optimizations-memory-usage-report.txt"):
        if total := re.search(r"^Total bytes: (\d+) ", path.read_text(encoding="utf-8"), re.MULTILINE):
            return int(total[1])
    return None


def write(path: Path, result: dict[str, Any]) -> None:
    """Writes a result, for reading too."""
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "plan", "draw"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--small", action="store_true", help="a small trial, without a GPU")
    parser.add_argument("--seconds", type=float, default=280.0, help="that the compiler may take for a plan")
    parser.add_argument("--compiler-options", nargs="*", default=(), help="of train, as in meshax train")
    asked = parser.parse_args()
    if asked.what == "train":
        trial = replace(SMALL if asked.small else Trial(), compiler_options=tuple(asked.compiler_options))
        train_all(trial, asked.files[0])
    elif asked.what == "plan":
        write(asked.files[0], plan(asked.seconds))
    else:
        from lesions_figure import draw

        draw(*(json.loads(path.read_text(encoding="utf-8")) for path in asked.files), PICTURE)


if __name__ == "__main__":
    main()
