"""Writes docs/presets/: a page for each family of presets, what they need on a mesh, and layouts that a search finds.

The paper's models have a mesh of their own, the paper's, and a layout, beside which stands what the search finds there.

    python benchmarks/presets_page.py [--write] [--only lm-0.14b ...]

Nothing runs: the figures are read off traces of the training step, as `meshax explain` and `meshax layout` read them.
"""

import argparse
import contextlib
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax

jax.config.update("jax_platforms", "cpu")

import meshax as mx  # noqa: E402
from meshax.models.contract import Preset, parameter_count  # noqa: E402
from meshax.models.presets import PRESETS, preset  # noqa: E402
from meshax.plan.cost.hardware import find  # noqa: E402
from meshax.plan.cost.processors import DescribedMesh, assuming  # noqa: E402
from meshax.plan.printing.units import show_bytes, show_seconds  # noqa: E402
from meshax.plan.search.layout_search import Candidate, search  # noqa: E402
from meshax.plan.search.named_layouts import find_layout, sizes_of  # noqa: E402
from meshax.train.preset_steps import preset_target  # noqa: E402

PAGES = Path(__file__).parents[1] / "docs" / "presets"
COMPARED = ("data", "data+model", "sequence", "fsdp")
MACHINES = {  # beside the paper's, which presets know
    **{name: ("data:2 model:4", "cpu") for name, p in PRESETS.items() if p.family == "laptop"},
    "wmt-baseline": ("data:8 model:1", "tpu-v2"),
    **{name: ("data:4 model:4", "tpu-v3") for name in PRESETS if name.startswith("unet3d-")},
    **{name: ("data:4 model:2", "h100") for name in ("resnet-18", "resnet-50")},
    "modern-0.1b": ("data:4 model:2", "h100"),
    "modern-1b": ("data:4 model:2", "h100"),
    "modern-7b": ("data:8 model:8", "h100"),
}
# Tables 2 and 3 of Shazeer et al. (2018): perplexity per word on the billion word benchmark, BLEU of WMT14 En-Fr.
PAPER = dict(zip([n for n in PRESETS if n.startswith("lm-")], (35.0, 31.7, 28.9, 26.8, 25.1, 24.1, 24.0), strict=True))
PAPER |= dict(
    zip(
        [n for n, p in PRESETS.items() if p.family == "translation"],
        (41.8, 42.5, 43.3, 43.5, 43.8, 43.9, 41.8),
        strict=True,
    )
)
RESULTS = {"paper": "paper's perplexity", "translation": "paper's BLEU"}
SETTINGS = (
    "They have the settings of the published configurations: learned positions of 256, dropout of 0.1 whose noise is "
    "shared along the length, logits jittered by 0.01, Adafactor without clipping, the schedule `paper` (a warm-up of "
    "10,000 steps, then the inverse root, at last a line to nothing in one epoch), the paper's batch. Unlike there, "
    "parameters are stored in float32."
)
FAMILIES = {
    "laptop": (
        "Presets for a laptop",
        "`tiny` is what `meshax train` trains when nothing else is said: "
        "[train a language model](../train_a_language_model.md) shows what comes of it. `wmt-tiny`, an encoder and a "
        "decoder of the same width, and `prefix-tiny`, one stack of layers, [translate](../translate.md); "
        "`masked-tiny` fills in hidden tokens (its figures are of JAX 0.10: in 0.12 GELU keeps less, 1.7 MB here); "
        "`unet-tiny` [segments volumes](../giant_images.md), and `resnet-tiny` tells images apart: some names of "
        "layouts are of dims that these have none of.",
    ),
    "paper": (
        "The paper's presets",
        "The language models of Table 2 of the Mesh-TensorFlow paper "
        "([Shazeer et al., 2018](https://arxiv.org/abs/1811.02084)). The heads and the width of the feed-forward map "
        "grow together, and with them what can be split over `model`; the width of the stream stays. The perplexities "
        "are the paper's, per word on the billion word benchmark; these models have not been trained with meshax. "
        f"{SETTINGS} A processor is a core of a TPU v2, with 8 GiB, and the meshes are the paper's: its largest model "
        "ran on 16 x 32 of them. The counts print as in the paper with a vocabulary of 32,768 (with 32,512 the row of "
        "64 heads would print 1.27).",
    ),
    "translation": (
        "The paper's presets that translate",
        "The translation models of Table 3 of the Mesh-TensorFlow paper "
        "([Shazeer et al., 2018](https://arxiv.org/abs/1811.02084)): an encoder and a decoder of 6 layers each. Inputs "
        "and targets share one embedding, the softmax has a matrix of its own. The BLEU is the paper's, of WMT14 "
        "English-French (tokenized its own way, so not to be set beside a sacrebleu score); these models have not been "
        f"trained with meshax. {SETTINGS} Labels are smoothed by 0.1. A processor is a core of a TPU v2, and the "
        "meshes are the paper's, but for the baseline. The counts print as in the paper with a vocabulary of 32,512 "
        "(with 32,768 the first row would print 0.16). The last row is the baseline, with the sizes of Vaswani et "
        "al.'s large model, one matrix for everything, sinusoids, Adam and the schedule of that paper; here norms come "
        "before the layers and have no shift, and no map has a bias.",
    ),
    "images": (
        "Presets of images",
        "Mesh-TensorFlow's U-Net for volumes of 128, 256 and 512 voxels a side, one of them in a step, and the usual "
        "classifiers of He et al. (2015). A volume has one example and three dims of space, so the layout that is "
        "called data cannot split it; what a search finds splits space, and sends the borders of blocks "
        "([an example larger than a device](../giant_images.md)). Of what data+model and sequence split, these "
        "networks have the batch alone, and nothing of what fsdp stores by. Where a step sends many small tensors, as "
        "those of batch norms are, the search counts each of them, though compilers join some: so it may prefer to "
        "split channels.",
    ),
    "modern": (
        "Modern presets",
        "The same decoder with what has become usual since: rotary positions, a gated feed-forward map, keys and "
        "values shared by groups of heads, examples of 2048 tokens. With groups, `heads` are only the heads of one "
        "group; the layouts named data+model and sequence split the groups, `kv_heads`, where these divide better.",
    ),
}
WHY = "It is, with what each rule saves and costs beside the same layout without it:"
OWN = textwrap.fill(
    "The layout of the paper's runs was `batch:data heads:model d_ff:model vocab:model`, which is data+model. What a "
    "step sends and does under it:",
    120,
)
FOUND = "The last column is the first line of what the search prints:"
COMPILED = {  # by families: what a compiler said
    "translation": """## Compiled

The largest of them, compiled for the 128 cores of the paper's mesh by the TPU compiler, without a TPU:

```bash
meshax plan --preset wmt-2.89b --topology "tpu v2:8x8" --mesh "data:16 model:8" --layout data+model
```

It fits: 3.88 GB of the 8.59 GB of a core (45%), where 3.64 GB were predicted. The compiler sends what the trace says:
122 tensors, 1.79 GB, all of them all-reduces, in 97 operations. A step is predicted to take 535 ms, 38% of the cores'
peak: computing 283 ms, memory 143 ms, communication 109 ms. (jax 0.10.2, libtpu 0.0.42.1.)"""
}
FOOT = """All figures on this page, but a compiler's, are predictions from traces of one training step with
Adafactor, at the preset's own batch and length, recomputing in the backward pass what the preset does not keep; nothing
ran. For each layout there is the peak memory of one processor and the time of a step; ✗ marks what does not fit. [The
same model under five layouts](../five_layouts.md) explains the names, [choosing a
layout](../choosing_a_layout.md#how-far-to-trust-it) how far to trust the figures. This page is written by

```bash
python benchmarks/presets_page.py --write
```"""


@dataclass
class Row:
    """A preset on its machine."""

    preset: Preset
    mesh: str
    hardware: str
    compared: dict[str, tuple[int, float]]  # the memory and the seconds of the usual layouts
    best: Candidate  # what a search finds


def measured(name: str) -> Row:
    """Traces the preset under the usual layouts, and searches for others."""
    axes, hardware = MACHINES.get(name) or (preset(name).mesh, "tpu-v2")
    machine = find(hardware)
    with assuming(machine):
        target = preset_target(name)
    fn, args, donate = target.fn, target.args, target.donate
    mesh, chosen, compared = DescribedMesh(axes, machine), preset(name), {}
    for name_of_layout in COMPARED:
        with contextlib.suppress(mx.LayoutError):  # a name may be of dims that this model has none of
            layout = find_layout(name_of_layout, mesh, known=chosen.model.glossary, sizes=sizes_of(args))
            report = mx.spmd(fn, mesh, layout, donate).explain(*args)
            compared[name_of_layout] = report.memory["peak"], report.seconds(hardware)
    best = search(fn, args, [mesh], hardware=hardware, donate=donate)[0]
    return Row(chosen, axes, hardware, compared, best)


def table(rows: list[Row]) -> str:
    """Returns the sizes, and what the layouts cost."""
    has_paper = any(row.preset.name in PAPER for row in rows)
    every = {" x ".join(row.preset.batch).replace("_", " ") for row in rows}
    sizes = every.pop() if len(every) == 1 else "batch"
    heads = ["preset", "parameters", sizes, *([RESULTS[rows[0].preset.family]] if has_paper else []), "processors"]
    heads += [*COMPARED, "found"]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        p, limit = row.preset, find(row.hardware).memory
        costs = [*(row.compared.get(layout) for layout in COMPARED), (row.best.memory, row.best.seconds)]
        lines.append([
            f"`{p.name}`", f"{parameter_count(p.model):,}", " x ".join(map(str, p.batch.values())),
            *([str(PAPER[p.name])] if has_paper else []), f"{row.mesh}, {row.hardware}",
            *("-" if cost is None else shown(*cost, limit) for cost in costs),
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(peak: int, seconds: float, limit: float) -> str:
    return f"{show_bytes(peak)}{' ✗' if peak > limit else ''}, {show_seconds(seconds)}"


def searching(row: Row) -> str:
    return f'meshax layout --preset {row.preset.name} --mesh "{row.mesh}" --hardware {row.hardware}'


def explaining(row: Row) -> str:
    where = f'--preset {row.preset.name} --mesh "{row.mesh}"'
    return f"meshax explain {where} --layout {row.preset.layout} --hardware {row.hardware}"


def commands(written: Callable[[Row], str], rows: list[Row]) -> str:
    return "\n".join(["```bash", *map(written, rows), "```"])


def advice(row: Row) -> str:
    """Returns the best layout that was found for a preset, with the reasons."""
    layout = repr(row.best.layout).removeprefix("Layout(").removesuffix(")")
    reasons = "\n".join(f"  - {reason}" for reason in row.best.why.split("; "))
    return f"- `{row.preset.name}`: `{layout}`\n  - sends {show_bytes(row.best.wire_bytes)} a step\n{reasons}"


def page(family: str, rows: list[Row]) -> str:
    """Returns the page of a family."""
    title, words = FAMILIES[family]
    has_own_layout = family in RESULTS
    parts = [
        f"# {title}",
        textwrap.fill(words, 120, break_on_hyphens=False, break_long_words=False),
        table(rows),
        *([OWN, commands(explaining, rows)] if has_own_layout else []),
        FOUND,
        commands(searching, rows),
        WHY,
        "\n".join(map(advice, rows)),
        *([COMPILED[family]] if family in COMPILED else []),
        "## The figures",
        FOOT,
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the pages, of whole families only")
    known = [name for name, one in PRESETS.items() if one.family in FAMILIES]
    parser.add_argument("--only", nargs="*", choices=known, default=known)
    options = parser.parse_args()
    rows = []
    for name in options.only:
        rows.append(measured(name))
        print(advice(rows[-1]), flush=True)
    for family in FAMILIES:
        if members := [row for row in rows if row.preset.family == family]:
            if options.write:
                (PAGES / f"{family}.md").write_text(page(family, members), encoding="utf-8")
            else:
                print(page(family, members))


if __name__ == "__main__":
    main()
