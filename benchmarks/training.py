"""`meshax train` itself against its bare step: how much of the speed is left when text, logs and checkpoints come in.

    python benchmarks/training.py measure LINES.jsonl [--models lm-1.28b:64 lm-0.14b:256] [--seconds 230]
    python benchmarks/training.py page LINES.jsonl      prints the tables of benchmarks/results/training_gpu.md

For each model, in processes of their own and one after the other: `meshax bench step` with one document in an example,
the same with two (`--packed`, as training has them), and `meshax train` on the source of Python's standard library,
with its log, two evaluations and a checkpoint. What training draws at random (dropout, the jitter of the logits) is
off, as in `bench step`; `--as-published` leaves it on, for a run with the paper's own recipe. A line is written for
each of them as soon as it is known.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshax.train.metrics import read_metrics

RESULTS = Path(__file__).parent / "results"
NOTHING_DRAWN = ("--model.dropout", "0.0", "--model.logit-jitter", "0.0")
PROGRAMS = ("bench", "packed", "train")
EVERY = 5  # steps between two lines of the log
_WIDTH = 120


def measure(
    path: Path,
    models: Sequence[str],
    programs: Sequence[str],
    length: int,
    steps: int,
    seconds: float,
    as_published: bool,
) -> None:
    """Measures the models one after the other, as long as there is time to begin something."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="meshax-training-") as folder, open(path, "a", encoding="utf-8") as file:
        for preset, batch in (model.split(":") for model in models):
            shape = ["--preset", preset, "--batch", batch, "--length", str(length), "--keep", "everything"]
            for program in programs if not as_published else ("train",):
                if time.monotonic() - begin > seconds:
                    print(f"no time is left for {program} of {preset}", flush=True)
                    return
                line = {"preset": preset, "batch": int(batch), "length": length, "as_published": as_published}
                print(f"{time.monotonic() - begin:5.0f} s: {preset} {batch} x {length}, {program}", flush=True)
                if program == "train":
                    line |= train(shape, Path(folder), steps, as_published)
                else:
                    line |= bench(shape, packed=program == "packed")
                print(text := json.dumps({"program": program, **line}), flush=True)
                print(text, file=file, flush=True)


def bench(shape: Sequence[str], packed: bool) -> dict[str, Any]:
    """Returns what `meshax bench step` says of a step."""
    words = ["bench", "step", *shape, "--json", "--rounds", "3", "--steps", "10", *(["--packed"] if packed else [])]
    said = meshax(words, stdout=subprocess.PIPE)
    if said.returncode:
        sys.exit(said.returncode)
    (one,) = json.loads(said.stdout)["measurements"]
    names = ("device", "parameters", "tokens", "seconds", "rounds", "compile_seconds", "peak_bytes", "kernels")
    return {name: one[name] for name in names}


def train(shape: Sequence[str], folder: Path, steps: int, as_published: bool) -> dict[str, Any]:
    """Trains, and returns what the run has written down of its speed."""
    run, vocabulary = folder / "run", folder / "vocabulary.json"
    words = ["train", *shape, "--mesh", "data:1", "--layout", "none", "--out", str(run), "--steps", str(steps)]
    words += ["--log-every", str(EVERY), "--eval-every", str(_fifths(steps, 2)), "--eval-batches", "4"]
    words += ["--save-every", str(_fifths(steps, 3)), "--data.cache", str(folder / "tokens")]
    words += [] if as_published else NOTHING_DRAWN
    words += ["--data.vocabulary", str(vocabulary)] if vocabulary.exists() else []
    begin = time.monotonic()
    status = meshax(words, stdout=None).returncode
    seconds, rows = time.monotonic() - begin, read_metrics(run / "metrics.jsonl")
    if not vocabulary.exists():
        shutil.copy(run / "vocabulary.json", vocabulary)
    shutil.rmtree(run)
    return {"status": status, "steps": steps, "every": EVERY, "run_seconds": seconds, "rows": rows}


def _fifths(steps: int, count: int) -> int:
    """Returns a step some fifths through the run that ends an interval of the log."""
    return max(steps * count // 5 // EVERY * EVERY, EVERY)


def meshax(words: Sequence[str], stdout: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command of the command line; what it says on the way is to be seen. Stopped, it says what it has."""
    done = subprocess.run([sys.executable, "-m", "meshax", *words], stdout=stdout, text=True)
    if done.returncode:
        print(f"meshax {' '.join(words)} ended with the status {done.returncode}", flush=True)
    return done


def intervals(line: Mapping[str, Any]) -> dict[int, float]:
    """Returns the seconds of a step, by the last step of an interval of the log; what ran aside is not in them."""
    tokens = line["batch"] * line["length"]
    rows = [row for row in line["rows"] if row.get("tokens_per_second") and row["step"] % line["every"] == 0]
    return {row["step"]: tokens / row["tokens_per_second"] for row in rows if row["step"] > line["every"]}


def speed(line: Mapping[str, Any]) -> float:
    """Returns the seconds of a step over all intervals that no evaluation or checkpoint comes before."""
    aside = {row["step"] for row in line["rows"] if "saving_seconds" in row or "evaluation_seconds" in row}
    return statistics.mean(s for step, s in intervals(line).items() if step - line["every"] not in aside)


def stopped(line: Mapping[str, Any], what: str) -> float:
    """Returns for how long all evaluations or all checkpoints kept steps waiting, in seconds each."""
    return statistics.mean(row[f"{what}_seconds"] for row in line["rows"] if f"{what}_seconds" in row)


def delayed(line: Mapping[str, Any]) -> float:
    """Returns by how much the steps right after a checkpoint took longer than others do, in seconds together."""
    after = [row["step"] + line["every"] for row in line["rows"] if "saving_seconds" in row]
    usual, taken = speed(line), intervals(line)
    return statistics.mean((taken[step] - usual) * line["every"] for step in after if step in taken)


def page(lines: Iterable[Mapping[str, Any]]) -> str:
    """Returns the page."""
    known = {(one["preset"], one["batch"], one["as_published"], one["program"]): one for one in lines}
    device = next(one["device"] for one in known.values() if "device" in one)
    words = f"# Training against its bare step, on one {device}\n\n"
    words += "| model, tokens of a step | bare step | packed | `meshax train` | of the bare step | of the packed |\n"
    words += "|---|---|---|---|---|---|\n"
    stops = "| model | one step | an evaluation | a checkpoint stops for | and delays what follows by | in steps |\n"
    stops += "|---|---|---|---|---|---|\n"
    for (preset, batch, as_published, program), line in known.items():
        if program != "train":
            continue
        bare, packed = (known.get((preset, batch, False, name), {}).get("seconds", 0.0) for name in ("bench", "packed"))
        name, ours = f"{preset}{', as published' if as_published else ''}", speed(line)
        words += f"| {name}, {batch} x {line['length']} | {_ms(bare)} | {_ms(packed)} | {_ms(ours)} "
        words += f"| {bare / ours:.1%} | {packed / ours:.1%} |\n"
        stop, delay = stopped(line, "saving"), delayed(line)
        stops += f"| {name} | {_ms(ours)} | {stopped(line, 'evaluation'):.2f} s | {_ms(stop)} | {_ms(delay)} "
        stops += f"| {(stop + delay) / ours:.2f} |\n"
    return f"{words}\n{stops}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("lines", type=Path)
    measuring.add_argument("--models", nargs="+", default=["lm-1.28b:64", "lm-0.14b:256"], metavar="PRESET:BATCH")
    measuring.add_argument("--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    measuring.add_argument("--length", type=int, default=256)
    measuring.add_argument("--steps", type=int, default=75)
    measuring.add_argument("--seconds", type=float, default=230.0, help="begin nothing after so many")
    measuring.add_argument("--as-published", action="store_true", help="train only, with dropout and jitter")
    commands.add_parser("page").add_argument("lines", type=Path)
    asked = parser.parse_args()
    if asked.command == "measure":
        asked = vars(asked)
        asked.pop("command")
        measure(asked.pop("lines"), **asked)
        return
    print(page(map(json.loads, asked.lines.read_text(encoding="utf-8").splitlines())))


if __name__ == "__main__":
    main()
