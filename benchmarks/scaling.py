"""Larger models, better models: the family of the paper's Table 2, scaled down to text that every machine has.

    python benchmarks/scaling.py run LINES.jsonl [--heads 1 4 16 64] [--seeds 0 1 2] [--steps 1000]
    python benchmarks/scaling.py page LINES.jsonl     prints the table of benchmarks/results/scaling.md
    python benchmarks/scaling.py draw LINES.jsonl     draws docs/images/scaling.svg

As there, the models differ in their heads and in the width of the feed-forward maps alone, both proportional; they
have 6 layers, and the paper's recipe (Adafactor, its schedule, dropout of 0.1), on a quarter of its d_model and d_kv.
All see the same tokens: the source of Python's standard library, several times over. Each size has a process of its
own, all at once on one GPU; a line is written for each run when it ends: the perplexity of the whole held-out text at
the end, and of a part of it on the way.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "scaling.svg"
WIDTH, D_KV, LAYERS, VOCABULARY = 256, 64, 6, 8192
EVALUATIONS = 10


def config(heads: int, asked: Mapping[str, Any], folder: Path) -> Any:
    """Returns a run of one of the models, without a seed."""
    from meshax.train.config import TrainConfig
    from meshax.train.text_options import DataOptions

    model = {"d_model": asked["width"], "heads": heads, "d_kv": D_KV, "d_ff": asked["width"] * heads, "layers": LAYERS}
    vocabulary = folder / "vocabulary.json"
    data = DataOptions(cache=str(folder / "tokens"), vocabulary=str(vocabulary) if vocabulary.exists() else "")
    return TrainConfig(
        preset="lm-0.14b", model_=model | {"vocab": VOCABULARY}, batch=asked["batch"], length=asked["length"],
        steps=asked["steps"], eval_every=max(asked["steps"] // EVALUATIONS, 1), eval_batches=4, log_every=20,
        save_every=asked["steps"] + 1, mesh="data:1", layout="none", keep="everything", data=data,
        out=str(folder / f"first-{heads}"),
    )  # fmt: skip


def run(path: Path, asked: Mapping[str, Any]) -> None:
    """Prepares the text, and lets a process for each size write its lines."""
    from rich.console import Console

    from meshax.train.corpus import prepare

    with tempfile.TemporaryDirectory(prefix="meshax-scaling-") as name:
        folder = Path(name)
        examples = prepare(config(1, asked, folder), Console(file=sys.stdout))
        examples.vocabulary.save(folder / "vocabulary.json")
        print(f"{examples.train.num_tokens:,} tokens, {examples.held_out.num_tokens:,} held out", flush=True)
        environment = {"JAX_COMPILATION_CACHE_DIR": f"{name}/compiled", **os.environ}  # the seeds share programs
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # and the sizes the memory
        children: list[subprocess.Popen[bytes]] = []
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
        for heads in sorted(asked["heads"], reverse=True):  # what takes longest begins first
            question = json.dumps({**asked, "heads": heads, "folder": name, "lines": str(path.resolve())})
            children.append(subprocess.Popen([sys.executable, __file__, "worker", question], env=environment))
        try:
            statuses = [child.wait() for child in children]
        finally:
            for child in children:
                child.kill()
    if any(statuses):
        sys.exit(f"processes ended with the statuses {statuses}")


def work(asked: Mapping[str, Any]) -> None:
    """Trains a model with each seed, and appends a line for each run."""
    from dataclasses import replace

    import jax
    from rich.console import Console

    from meshax.models.contract import parameter_count
    from meshax.train.loop import Run
    from meshax.train.metrics import read_metrics

    folder, heads = Path(asked["folder"]), asked["heads"]
    for seed in asked["seeds"]:
        begin = time.monotonic()
        console = Console(file=open(os.devnull, "w")) if asked["quiet"] else Console(file=sys.stdout)  # noqa: SIM115
        training = Run(replace(config(heads, asked, folder), seed=seed, out=str(folder / f"{heads}-{seed}")), console)
        result = training.train()
        rows = read_metrics(training.directory / "metrics.jsonl")
        bigram = json.loads((training.directory / "result.json").read_text(encoding="utf-8"))["bigram_perplexity"]
        line = {
            "heads": heads, "seed": seed, "parameters": parameter_count(training.model),
            "embeddings": 2 * VOCABULARY * asked["width"],
            "tokens": asked["steps"] * asked["batch"] * asked["length"], "steps": asked["steps"],
            "corpus_tokens": training.examples.train.num_tokens, "perplexity": result.metrics["perplexity"],
            "loss": result.loss, "bits_per_byte": result.data_metrics.get("bits_per_byte"),
            "bigram_perplexity": bigram,
            "curve": [(row["step"], row["eval_loss"]) for row in rows if "eval_loss" in row],
            "train_loss": statistics.mean([row["loss"] for row in rows if "loss" in row][-5:]),
            "seconds": time.monotonic() - begin, "device": jax.devices()[0].device_kind, "jax": jax.__version__,
        }  # fmt: skip
        with open(asked["lines"], "a", encoding="utf-8") as file:
            print(json.dumps(line), file=file, flush=True)
        shown = {name: value for name, value in line.items() if name != "curve"}
        print(json.dumps(shown), flush=True)


def by_size(lines: Iterable[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    """Returns the runs of each size, the smallest first."""
    runs_of: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        runs_of[line["parameters"]].append(line)
    return dict(sorted(runs_of.items()))


def page(lines: Iterable[Mapping[str, Any]]) -> str:
    """Returns the table: the mean over the seeds, and the least and the greatest."""
    words = (
        "| heads | parameters | without embeddings | perplexity, held out | least, greatest | last loss of training |\n"
    )
    words += "|---|---|---|---|---|---|\n"
    for size, runs in by_size(lines).items():
        results = [one["perplexity"] for one in runs]
        words += f"| {runs[0]['heads']} | {size / 1e6:.1f} M | {(size - runs[0]['embeddings']) / 1e6:.1f} M "
        words += f"| {statistics.mean(results):.2f} | {min(results):.2f}, {max(results):.2f} "
        words += f"| {statistics.mean(one['train_loss'] for one in runs):.3f} |\n"
    return words


def draw(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws perplexity against parameters: a dot for each run, a line through the means."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "meshax"  # the same picture from the same lines
    from matplotlib import pyplot

    sizes = by_size(lines)
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    means = [statistics.mean(one["perplexity"] for one in runs) for runs in sizes.values()]
    axes.plot(list(sizes), means, linewidth=1.4, label="mean of the seeds")
    axes.plot(
        [size for size, runs in sizes.items() for _ in runs],
        [one["perplexity"] for runs in sizes.values() for one in runs],
        linestyle="", marker="o", markersize=5, alpha=0.6, label="a run",
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(list(sizes), [f"{size / 1e6:.1f} M" for size in sizes])
    axes.minorticks_off()
    if bigram := [one["bigram_perplexity"] for one in lines if "bigram_perplexity" in one]:
        axes.axhline(bigram[0], color="gray", linestyle="--", linewidth=1, label="a bigram model")
    axes.set(xlabel="parameters", ylabel="held-out perplexity")
    axes.grid(alpha=0.25)
    axes.legend()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("lines", type=Path)
    running.add_argument("--heads", nargs="+", type=int, default=[1, 4, 16, 64])
    running.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    running.add_argument("--steps", type=int, default=1000)
    running.add_argument("--batch", type=int, default=64)
    running.add_argument("--length", type=int, default=256)
    running.add_argument("--width", type=int, default=WIDTH, help="d_model")
    running.add_argument("--quiet", action="store_true", help="print the results alone")
    commands.add_parser("worker").add_argument("question", type=json.loads)
    for command in ("page", "draw"):
        commands.add_parser(command).add_argument("lines", type=Path)
    asked = vars(parser.parse_args())
    command, lines = asked.pop("command"), asked.pop("lines", None)
    if command == "run":
        run(lines, asked)
    elif command == "worker":
        work(asked["question"])
    else:
        read = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
        print(page(read)) if command == "page" else draw(read, PICTURE)


if __name__ == "__main__":
    main()
