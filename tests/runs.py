"""Some text to train on, and the smallest run that has everything."""

import random

from meshax.train.config import TrainConfig
from meshax.train.options import DataOptions

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "and", "then", "quickly", "slowly"]


def write_text(folder, files=4, lines=120):
    """Writes sentences that always are the same, and returns their glob."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        sentences = [" ".join(draw.choices(WORDS, k=8)) for _ in range(lines)]
        (folder / f"{number}.txt").write_text("\n".join(sentences), encoding="utf-8")
    return str(folder / "*.txt")


def small(folder, out="run", **changes):
    """Returns a run of 12 steps on that text."""
    data = changes.pop("data", None) or DataOptions(text=(str(folder / "text" / "*.txt"),))
    given = dict(vocab=300, batch=8, length=32, steps=12, dropout=0.1, log_every=1, eval_every=4, save_every=4)
    return TrainConfig(out=str(folder / out), data=data, **(given | changes))
