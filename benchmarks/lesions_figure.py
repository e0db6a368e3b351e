"""Draws the figure of docs/giant_images.md: small lesions against resolution, and memory against processors."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt

# What a processor has, its name, and where there is room for both.
MEMORY = {"v3": (17.2, "a core of a TPU v3", 1, "left"), "v5p": (102.0, "a chip of a TPU v5p", 32, "right")}
COLOURS = {"small": "#c0392b", "lesions": "#e59866", "liver": "#2471a3", "v3": "#6c3483", "v5p": "#1e8449"}
NAMES = {"small": "small lesions", "lesions": "all lesions", "liver": "the liver"}


def draw(result: dict[str, Any], memory: dict[str, Any], path: Path) -> None:
    """Draws both halves.

    Args:
        result: of `lesions.py train`.
        memory: of `lesions.py plan`.
        path: of the picture.
    """
    plt.rcParams.update({"svg.hashsalt": "lesions", "font.size": 10})
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    rows = sorted(result["rows"], key=lambda row: row["size"])
    sizes = [row["size"] for row in rows]
    for name, label in NAMES.items():
        left.plot(sizes, [row[name] for row in rows], "o-", color=COLOURS[name], label=label)
    left.set_xscale("log", base=2)
    left.set_xticks(sizes, [str(size) for size in sizes])
    left.set(xlabel="voxels a side that the network sees", ylabel="Dice at the finest resolution", ylim=(0, 1))
    left.set_title("What is lost when a volume is shrunk")
    left.legend(loc="lower right")
    _memory(right, memory["rows"])
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _memory(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draws what the compiler needs, what the trace says, and what there is."""
    for kind, (limit, name, place, side) in MEMORY.items():
        own = [row for row in rows if row["kind"] == kind and row["compiler_bytes"]]
        counts, needed = [row["processors"] for row in own], [row["compiler_bytes"] / 1e9 for row in own]
        axes.plot(counts, needed, "o-", color=COLOURS[kind], label=f"the compiler for TPU {kind}")
        axes.axhline(limit, color=COLOURS[kind], linestyle="--", linewidth=1)
        axes.annotate(f"{name} has {limit:.0f} GB", (place, limit * 1.02), ha=side, va="bottom", fontsize=8)
    traced = {row["processors"]: row["traced_bytes"] / 1e9 for row in rows if row["traced_bytes"]}
    axes.plot(list(traced), list(traced.values()), "s:", color="#555555", label="the trace")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_yticks([10, 20, 50, 100, 200], ["10", "20", "50", "100", "200"])
    axes.set_yticks([], minor=True)
    axes.set_xticks(list(traced), [str(count) for count in traced])
    axes.set(xlabel="processors that share one volume", ylabel="GB on a processor")
    axes.set_title("One volume of 512 x 512 x 512")
    axes.legend(loc="lower left", fontsize=8)
