"""Models that translate, by name."""

from ..contract import Preset, Recipe
from ..transformer_config import PAPER_FIELDS, PAPER_RECIPE
from .encoder_decoder import EncoderDecoderConfig

_VOCAB = 32_512  # with which all counts of Table 3 print; with 32,768 the first row would print 0.16
_PAIRS = {"batch": 128, "source_length": 256, "length": 256}


def _paper(name: str, heads: int, mesh: str) -> Preset:
    """A row of Table 3: 6 + 6 layers, d_model 1024, d_k = d_v = 128, d_ff = 512 x heads, a separate softmax."""
    model = EncoderDecoderConfig(
        d_model=1024, heads=heads, d_kv=128, d_ff=512 * heads, layers=6, vocab=_VOCAB, label_smoothing=0.1,
        **PAPER_FIELDS,
    )  # fmt: skip
    recipe = Recipe(**PAPER_RECIPE, steps=154_000, cooldown=51_400)  # three epochs of En-Fr; the last fall takes one
    about = f"Table 3 of the Mesh-TensorFlow paper, {heads} heads"
    return Preset(name, "translation", model, _PAIRS, 3e-4, about, recipe, mesh)


def _baseline() -> Preset:
    """The last row of Table 3: the sizes of the first Transformer's large model (Vaswani et al., 2017), all tied."""
    model = EncoderDecoderConfig(
        d_model=1024, heads=16, d_kv=64, d_ff=4096, layers=6, vocab=_VOCAB, tied=True, positions="sinusoidal",
        embedding_scale=1024**0.5, dropout=0.1, label_smoothing=0.1,
    )  # fmt: skip
    recipe = Recipe("adamw", "rsqrt", steps=300_000, warmup=4_000)
    about = "the baseline of Table 3 of the Mesh-TensorFlow paper (Vaswani et al.)"
    return Preset("wmt-baseline", "translation", model, _PAIRS, (1024 * 4000) ** -0.5, about, recipe)


_TINY = EncoderDecoderConfig(
    d_model=128,
    heads=8,
    d_kv=16,
    d_ff=512,
    layers=2,
    vocab=1024,
    positions="learned",
    max_length=256,
    label_smoothing=0.1,
    dtype="float32",
    keep="everything",
)

PRESETS = (
    Preset(
        "wmt-tiny", "laptop", _TINY, {"batch": 32, "source_length": 64, "length": 64}, 3e-3,
        "translates numbers, dates and times, on the 8 virtual processors of a laptop",
    ),
    _paper("wmt-0.15b", 4, "data:32 model:1"),
    _paper("wmt-0.24b", 8, "data:32 model:1"),
    _paper("wmt-0.42b", 16, "data:8 model:4"),
    _paper("wmt-0.77b", 32, "data:8 model:4"),
    _paper("wmt-1.48b", 64, "data:16 model:8"),
    _paper("wmt-2.89b", 128, "data:16 model:8"),
    _baseline(),
)  # fmt: skip
