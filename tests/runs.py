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


PAIRS = [(f"{number} {word}", f"{word[::-1]} {number} .") for word in WORDS for number in range(40)]


def write_pairs(folder, pairs=PAIRS):
    """Writes sentences and their translations, words backwards, and returns the options that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    for side, name in enumerate(("a.en", "a.fr")):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return DataOptions(source=(str(folder / "a.en"),), target=(str(folder / "a.fr"),))


SMALL_TRANSLATOR = dict(d_model=16, heads=2, d_kv=8, d_ff=16, layers=1, max_length=32, label_smoothing=0.0)


def small_translator(folder, out="run", **changes):
    """Returns a run of a few steps on such pairs."""
    data = changes.pop("data", None) or write_pairs(folder / "pairs")
    given = dict(preset="wmt-tiny", model_=SMALL_TRANSLATOR, vocab=300, batch=8, length=24, source_length=20, steps=4)
    given |= dict(log_every=1, eval_every=2, save_every=2, translations=4, mesh="x:1", layout="none")
    return TrainConfig(out=str(folder / out), data=data, **(given | changes))


SMALL_UNET = dict(levels=2, filters=2, convs=1)


def small_unet(folder, out="run", **changes):
    """Returns a run of a few steps on synthetic volumes."""
    data = changes.pop("data", None) or DataOptions(cases=5)
    given = dict(preset="unet-tiny", model_=SMALL_UNET, batch=2, voxels=(12,), steps=4, seed=1)
    given |= dict(log_every=1, eval_every=2, save_every=2, eval_batches=1, mesh="data:1 model:1")
    return TrainConfig(out=str(folder / out), data=data, **(given | changes))
