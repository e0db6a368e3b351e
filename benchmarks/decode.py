"""Writing text, measured on a GPU beside the same models by hand, and predicted for machines that are not there.

    python benchmarks/decode.py measure LINES.jsonl [--seconds 540]   on a GPU: a line for each measurement, as it goes
    python benchmarks/decode.py page LINES.jsonl                      writes benchmarks/results/decode_gpu.md
    python benchmarks/decode.py predict                               writes benchmarks/results/decode_predictions.md

A line has the program (meshax, jax or torch), the model, the slots, the milliseconds of a token in each round and what
`meshax bench decode` says beside. Lines of several turns count together; those with other flags of XLA do not.
"""

import argparse
import json
import statistics
import textwrap
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import meshax as mx
from meshax.bench.decode import FORMULA, Decoding
from meshax.bench.decode_beside import in_turns
from meshax.bench.turns import PROGRAMS
from meshax.decode.planning import decode_target
from meshax.plan.cost.hardware import find
from meshax.plan.explain.report import explain
from meshax.plan.printing.units import show_bytes
from meshax.plan.search.layout_search import search

RESULTS = Path(__file__).parent / "results"
ROWS = (("lm-1.28b", 1), ("lm-1.28b", 8), ("lm-4.90b", 1), ("modern-1b", 1))
NAMES = {"meshax": "meshax", "jax": "JAX by hand", "torch": "torch.compile"}
PAPER = ("lm-0.14b", "lm-0.22b", "lm-0.37b", "lm-0.67b", "lm-1.28b", "lm-2.48b", "lm-4.90b")
POD = "rows:16 cols:32"  # 512 cores of TPU v2, the paper's largest machine
NOT_SPLIT = ("d_model", "d_kv", "places")  # so that the search is short; to split them was never best
PREDICTED = (*((name, 1) for name in PAPER), ("lm-4.90b", 256))  # and how many texts at once
CONTEXT = 1024
_WIDTH = 120


def measure(path: Path, seconds: float, rows: Sequence[tuple[str, int]] = ROWS, turns: int = 2) -> None:
    """Measures all rows in turns, as long as there is time, and writes a line for each."""
    begin = time.monotonic()
    with open(path, "a", encoding="utf-8") as file:
        for turn in range(turns):
            for name, slots in rows:
                for program in PROGRAMS:
                    if time.monotonic() - begin > seconds:
                        return
                    (one,) = in_turns((program,), Decoding(name, slots=slots), 1, 8, profile=not turn)
                    print(line := json.dumps(as_line(one, turn)), flush=True)
                    print(line, file=file, flush=True)


def as_line(one: Any, turn: int) -> dict[str, Any]:
    """Returns a measurement as it is kept."""
    return {
        "program": one.program, "preset": one.name, "slots": one.slots, "turn": turn, "flags": "",
        "context": one.context, "tokens": one.tokens, "device": one.device, "bound_ms": one.bound and one.bound * 1e3,
        "rounds_ms": [seconds * 1e3 for seconds in one.rounds], "first_ms": one.first_token_seconds * 1e3,
        "kernels_ms": {kind: seconds * 1e3 for kind, seconds in one.kernels.items()},
        "peak_gib": one.peak_bytes / 2**30,
    }  # fmt: skip


def page(lines: Iterable[dict[str, Any]]) -> str:
    """Returns the page of measurements."""
    several: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if "program" in line and not line["flags"]:
            several[line["preset"], line["slots"]][line["program"]].append(line)
    first = next(line for programs in several.values() for own in programs.values() for line in own)
    table = [
        "| model | slots | program | a token | share of the bandwidth | tokens/s | first token | predicted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    spent = []
    for (name, slots), programs in several.items():
        for program in (one for one in PROGRAMS if one in programs):
            own = programs[program]
            milliseconds = statistics.median(ms for line in own for ms in line["rounds_ms"])
            share = own[0]["bound_ms"] / milliseconds
            first_ms = statistics.median(line["first_ms"] for line in own)
            cells = [
                name, slots, NAMES[program], f"{milliseconds:.3f} ms", f"{share:.0%}",
                f"{slots / milliseconds * 1e3:,.0f}", f"{first_ms:.1f} ms" if first_ms else "",
                predicted(name, slots, own[0]) if program == "meshax" else "",
            ]  # fmt: skip
            table.append(f"| {' | '.join(map(str, cells))} |")
            spent += [(name, slots, NAMES[program], line["kernels_ms"]) for line in own if line["kernels_ms"]][:1]
    kinds = list(dict.fromkeys(kind for *_, kernels in spent for kind in kernels))
    breakdown = [f"| ms of a token | slots | program | {' | '.join(kinds)} |", "|---" * (3 + len(kinds)) + "|"]
    for name, slots, program, kernels in spent:
        breakdown.append(f"| {name} | {slots} | {program} | {' | '.join(f'{kernels.get(k, 0):.3f}' for k in kinds)} |")
    parts = [
        "# Writing text on one GPU",
        textwrap.fill(
            f"One run, the programs in turns, each in a process of its own, {first['device']}. bfloat16, random "
            f"weights, texts of {first['context']:,} tokens, {first['tokens']} tokens to a program; the median of "
            "all rounds.",
            _WIDTH,
        ),
        "    python benchmarks/decode.py measure LINES.jsonl\n    python benchmarks/decode.py page LINES.jsonl",
        textwrap.fill(
            f"The share is that of the least time there is: {FORMULA}. A first token is a prompt of the whole context, "
            "read, and a token. Predicted is what `meshax explain --decode` says without the machine.",
            _WIDTH,
        ),
        "\n".join(table),
        "## Where the time goes",
        "\n".join(breakdown),
    ]
    return "\n\n".join(parts) + "\n"


def predicted(name: str, slots: int, line: dict[str, Any], hardware: str = "h200") -> str:
    """Returns the predicted milliseconds of a token on one processor."""
    places = line["context"] + line["tokens"]
    target = decode_target(name, {"max_length": places}, slots, places)
    report = explain(target.build("one:1", hardware=find(hardware)), *target.args)
    report.replays = True
    return f"{report.seconds(hardware) * 1e3:.3f} ms"


def best_row(name: str, slots: int) -> str:
    """Returns a row of the page of predictions: the best layout of a model for so many texts."""
    machine, target = find("tpu-v2"), decode_target(name, {"max_length": CONTEXT}, slots, CONTEXT)
    unsplit, processors = (*target.unsplit, *NOT_SPLIT), mx.Mesh(POD, abstract=True)
    best = search(target.fn, target.args, [processors], hardware=machine, exclude=unsplit, donate=target.donate)[0]
    spent = best.report.time(machine)
    seconds = (spent.total, spent.memory + spent.compute, spent.communication)
    times = " | ".join(f"{one * 1e3:.2f} ms" for one in seconds)
    rules = repr(best.layout).removeprefix('Layout("').removesuffix('")')
    return f"| {name} | {slots} | `{rules}` | {times} | {slots / best.seconds:,.0f} | {show_bytes(best.memory)} |"


def prediction_page(rows: Iterable[str]) -> str:
    """Returns the page of predictions."""
    about = (
        "Nothing ran: `python benchmarks/decode.py predict`. The paper's language models write in texts of "
        f"{CONTEXT:,} tokens, in bfloat16, on a mesh of {POD}, under the fastest layout that a search finds, as "
        "`meshax layout --decode` does: for one text, and the largest model for 256 at once. One core alone would "
        "take 28 ms to read the weights of that model, if they fitted. What is sent for one text are a few numbers: it "
        "takes a microsecond for each hop of a ring, so small models are fastest on few of the cores."
    )
    table = [
        "| model | texts | layout | a token | reading | sending | tokens/s | memory of a core |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
    ]
    parts = ["# Writing text on 512 TPU v2 cores, predicted", textwrap.fill(about, _WIDTH), "\n".join(table)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "page", "predict"))
    parser.add_argument("lines", type=Path, nargs="?", default=Path("decode.jsonl"))
    parser.add_argument("--seconds", type=float, default=540.0)
    asked = parser.parse_args()
    if asked.what == "measure":
        measure(asked.lines, asked.seconds)
    elif asked.what == "page":
        lines = [json.loads(line) for line in asked.lines.read_text(encoding="utf-8").splitlines()]
        (RESULTS / "decode_gpu.md").write_text(page(lines), encoding="utf-8")
    else:
        rows = [best_row(name, slots) for name, slots in PREDICTED]
        (RESULTS / "decode_predictions.md").write_text(prediction_page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
