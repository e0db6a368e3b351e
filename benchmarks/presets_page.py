"""Writes docs/presets/: a page for each family of presets, what they need on a mesh, and layouts that a search finds.

    python benchmarks/presets_page.py [--write] [--only lm-0.14b ...]

Nothing runs: the figures are read off traces of the training step, as `meshax explain` and `meshax layout` read them.
"""

import argparse
import textwrap
from dataclasses import dataclass
from pathlib import Path

import jax

jax.config.update("jax_platforms", "cpu")

import meshax as mx  # noqa: E402
from meshax.models.contract import Preset, parameter_count  # noqa: E402
from meshax.models.presets import PRESETS, preset  # noqa: E402
from meshax.plan.cost.hardware import find  # noqa: E402
from meshax.plan.printing.units import show_bytes, show_seconds  # noqa: E402
from meshax.plan.search.layout_search import Candidate, search  # noqa: E402
from meshax.plan.search.named_layouts import find_layout, sizes_of  # noqa: E402
from meshax.train.preset_steps import preset_target  # noqa: E402

PAGES = Path(__file__).parents[1] / "docs" / "presets"
COMPARED = ("data", "data+model", "sequence", "fsdp")
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
    "laptop": (
        "Presets for a laptop",
        "What `meshax train` trains when nothing else is said: "
        "[train a language model](../train_a_language_model.md) shows what comes of it.",
    ),
    "paper": (
        "The paper's presets",
        "The language models of Table 2 of the Mesh-TensorFlow paper "
        "([Shazeer et al., 2018](https://arxiv.org/abs/1811.02084)). The heads and the width of the feed-forward map "
        "grow together, and with them what can be split over `model`; the width of the stream stays. The perplexities "
        "are the paper's, per word on the billion word benchmark; these models have not been trained with meshax. A "
        "processor is a core of a TPU v2, with 8 GiB; the paper trained its largest model on 512 of them.",
    ),
    "modern": (
        "Modern presets",
        "The same decoder with what has become usual since: rotary positions, a gated feed-forward map, keys and "
        "values shared by groups of heads, examples of 2048 tokens. With groups, `heads` are only the heads of one "
        "group; the layouts named data+model and sequence split the groups, `kv_heads`, where these divide better.",
    ),
}
FOOT = """All figures on this page are predictions from traces of one training step with Adafactor, at the preset's own
batch and length, recomputing in the backward pass what the preset does not keep; nothing ran. For each layout there is
the peak memory of one processor and the time of a step; ✗ marks what does not fit. [The same model under five
layouts](../five_layouts.md) explains the names, [choosing a layout](../choosing_a_layout.md#how-far-to-trust-it) how
far to trust the figures. This page is written by

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
    best: Candidate


def measured(name: str) -> Row:
    """Traces the preset under the usual layouts, and searches for others."""
    axes, hardware = MACHINES[name]
    target = preset_target(name)
    fn, args, donate = target.fn, target.args, target.donate
    mesh, chosen, compared = mx.Mesh(axes, abstract=True), preset(name), {}
    for layout in COMPARED:
        report = mx.spmd(fn, mesh, find_layout(layout, mesh, sizes=sizes_of(args)), donate).explain(*args)
        compared[layout] = report.memory["peak"], report.seconds(hardware)
    return Row(chosen, axes, hardware, compared, search(fn, args, [mesh], hardware=hardware, donate=donate)[0])


def table(rows: list[Row]) -> str:
    """Returns the sizes, and what the layouts cost."""
    has_paper = any(row.preset.name in PAPER for row in rows)
    heads = ["preset", "parameters", "batch x length", *(["paper's perplexity"] if has_paper else []), "processors"]
    heads += [*rows[0].compared, "found"]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        p, limit = row.preset, find(row.hardware).memory
        costs = [*row.compared.values(), (row.best.memory, row.best.seconds)]
        lines.append([
            f"`{p.name}`", f"{parameter_count(p.model):,}", " x ".join(map(str, p.batch.values())),
            *([str(PAPER[p.name])] if has_paper else []), f"{row.mesh}, {row.hardware}",
            *(f"{show_bytes(peak)}{' ✗' if peak > limit else ''}, {show_seconds(time)}" for peak, time in costs),
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def command(row: Row) -> str:
    return f'meshax layout --preset {row.preset.name} --mesh "{row.mesh}" --hardware {row.hardware}'


def advice(row: Row) -> str:
    """Returns the best layout that was found for a preset, with the reasons."""
    layout = repr(row.best.layout).removeprefix("Layout(").removesuffix(")")
    reasons = "\n".join(f"  - {reason}" for reason in row.best.why.split("; "))
    return f"- `{row.preset.name}`: `{layout}`\n  - sends {show_bytes(row.best.wire_bytes)} a step\n{reasons}"


def page(family: str, rows: list[Row]) -> str:
    """Returns the page of a family."""
    title, words = FAMILIES[family]
    commands = "\n".join(map(command, rows))
    parts = [
        f"# {title}",
        textwrap.fill(words, 120, break_on_hyphens=False, break_long_words=False),
        table(rows),
        "The last column is the first line of what the search prints:",
        f"```bash\n{commands}\n```",
        "It is, with what each rule saves and costs beside the same layout without it:",
        "\n".join(map(advice, rows)),
        "## The figures",
        FOOT,
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the pages, of whole families only")
    parser.add_argument("--only", nargs="*", choices=PRESETS, default=list(PRESETS))
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
