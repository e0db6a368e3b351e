"""Writes docs/presets.md: every preset, what it needs on a mesh, and which layouts a search finds for it.

    python benchmarks/presets_page.py [--write] [--only lm-0.14b ...]

Nothing runs: the figures are read off traces of the training step, as `meshax explain` and `meshax layout` read them.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import jax

jax.config.update("jax_platforms", "cpu")

import meshax as mx  # noqa: E402
from meshax.models.decoder import parameter_count  # noqa: E402
from meshax.models.presets import PRESETS, Preset, preset  # noqa: E402
from meshax.plan.hardware import find  # noqa: E402
from meshax.plan.named_layouts import find_layout  # noqa: E402
from meshax.plan.search import Candidate, search  # noqa: E402
from meshax.plan.table import show_bytes, show_seconds  # noqa: E402
from meshax.train.preset_steps import training_step  # noqa: E402

PAGE = Path(__file__).parents[1] / "docs" / "presets.md"
USUAL = ("data", "data+model", "fsdp")
# A machine for each, with room to spare; the last rows are those of the paper and of a cluster of H100s.
MACHINES = {
    "tiny": ("data:2 model:4", "cpu"),
    "lm-0.14b": ("data:16 model:2", "tpu-v2"),
    "lm-0.22b": ("data:16 model:2", "tpu-v2"),
    "lm-0.37b": ("data:16 model:4", "tpu-v2"),
    "lm-0.67b": ("data:16 model:4", "tpu-v2"),
    "lm-1.28b": ("data:16 model:8", "tpu-v2"),
    "lm-2.48b": ("data:16 model:16", "tpu-v2"),
    "lm-4.90b": ("data:16 model:32", "tpu-v2"),
    "modern-0.1b": ("data:4 model:2", "h100"),
    "modern-1b": ("data:4 model:2", "h100"),
    "modern-7b": ("data:8 model:8", "h100"),
}
# Table 2 of Shazeer et al. (2018): perplexity per word on the billion word benchmark.
PAPER = dict(zip([n for n in PRESETS if n.startswith("lm-")], (35.0, 31.7, 28.9, 26.8, 25.1, 24.1, 24.0), strict=True))
FAMILIES = {
    "laptop": "## For a laptop\n\nWhat `meshax train` trains when nothing else is said: "
    "[train a language model](train_a_language_model.md) shows what comes of it.",
    "paper": "## The paper's\n\nThe language models of Table 2 of the Mesh-TensorFlow paper "
    "([Shazeer et al., 2018](https://arxiv.org/abs/1811.02084)). The heads and the width of the feed-forward map grow "
    "together, and with them what can be split over `model`; the width of the stream stays. The perplexities are the "
    "paper's, per word on the billion word benchmark; nobody has trained these models with meshax yet. A processor is a "
    "core of a TPU v2, with 8 GiB; 512 of them in a mesh of 16 x 32 is what the paper trained its largest model on.",
    "modern": "## Modern\n\nThe same decoder with what has become usual since: rotary positions, a gated feed-forward "
    "map, keys and values shared by groups of heads, examples of 2048 tokens.",
}
HEAD = """# Presets

Models by name, for `--preset`. `meshax presets` lists them, with the sizes of all their dims if you add `--json`.

    meshax presets
    meshax train --preset modern-0.1b --text "books/*.txt" --mesh "data:8" --layout fsdp --out runs/books
    meshax explain --preset lm-1.28b --mesh "data:16 model:8" --layout data+model --hardware tpu-v2
    meshax layout --preset lm-1.28b --mesh "data:16 model:8" --hardware tpu-v2

All figures on this page are predictions from traces of one training step with Adafactor, at the preset's own batch and
length, recomputing in the backward pass what the preset does not keep; nothing ran. "Memory" is the peak of one
processor, and (✗) marks what does not fit there. [Choosing a layout](choosing_a_layout.md#how-far-to-trust-it) says how
far to trust them, and [reading the report](reading_the_report.md) what they mean. This page is written by

    python benchmarks/presets_page.py --write
"""


@dataclass
class Row:
    """A preset on its machine."""

    preset: Preset
    mesh: str
    hardware: str
    memory: dict[str, int]  # of the usual layouts
    best: Candidate


def measured(name: str) -> Row:
    """Traces the preset under the usual layouts, and searches for others."""
    axes, hardware = MACHINES[name]
    fn, args, donate = training_step(name)
    mesh = mx.Mesh(axes, abstract=True)
    memory = {
        usual: mx.spmd(fn, mesh, find_layout(usual, mesh), donate).explain(*args).memory["peak"] for usual in USUAL
    }
    return Row(preset(name), axes, hardware, memory, search(fn, args, [mesh], hardware=hardware, donate=donate)[0])


def table(rows: list[Row]) -> str:
    """Returns the sizes, and the memory on each processor."""
    has_paper = any(row.preset.name in PAPER for row in rows)
    heads = ["preset", "parameters", "batch x length", *(["paper's perplexity"] if has_paper else []), "mesh"]
    heads += [*(f"memory: {usual}" for usual in USUAL), "best found", "its step"]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        p, limit = row.preset, find(row.hardware).memory
        lines.append([
            f"`{p.name}`", f"{parameter_count(p.model):,}", f"{p.batch} x {p.length}",
            *([str(PAPER[p.name])] if has_paper else []), f"`{row.mesh}`, {row.hardware}",
            *(show_bytes(peak) + (" (✗)" if peak > limit else "") for peak in row.memory.values()),
            show_bytes(row.best.memory), show_seconds(row.best.seconds),
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def advice(row: Row) -> str:
    """Returns the best layout of a preset, with the reasons and the command."""
    command = f'meshax layout --preset {row.preset.name} --mesh "{row.mesh}" --hardware {row.hardware}'
    layout = repr(row.best.layout).removeprefix("Layout(").removesuffix(")")
    reasons = "\n".join(f"  - {reason}" for reason in row.best.why.split("; "))
    sent = show_bytes(row.best.wire_bytes)
    return f"- `{command}`: best is `{layout}`, {sent} sent by each processor in a step, where\n{reasons}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/presets.md")
    parser.add_argument("--only", nargs="*", choices=PRESETS, default=list(PRESETS))
    options = parser.parse_args()
    rows = []
    for name in options.only:
        rows.append(measured(name))
        print(advice(rows[-1]), flush=True)
    parts = [HEAD]
    for family, words in FAMILIES.items():
        if members := [row for row in rows if row.preset.family == family]:
            parts += [words, table(members), "What a search finds:", "\n".join(map(advice, members))]
    text = "\n\n".join(part.strip("\n") for part in parts) + "\n"
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
