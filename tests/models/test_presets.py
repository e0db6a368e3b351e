"""The paper's parameter counts, to the printed digits, without making a parameter."""

import pytest

import meshax as mx
from meshax.models.contract import parameter_count
from meshax.models.presets import PRESETS, preset

# Tables 2 and 3: heads, billions of parameters as printed, and the mesh of the published configurations.
TABLES = {
    "lm-0.14b": (4, "0.14", {"data": 32, "model": 1}),
    "lm-0.22b": (8, "0.22", {"data": 32, "model": 1}),
    "lm-0.37b": (16, "0.37", {"data": 8, "model": 4}),
    "lm-0.67b": (32, "0.67", {"data": 8, "model": 4}),
    "lm-1.28b": (64, "1.28", {"data": 16, "model": 8}),
    "lm-2.48b": (128, "2.48", {"data": 16, "model": 32}),
    "lm-4.90b": (256, "4.90", {"data": 16, "model": 32}),
    "wmt-0.15b": (4, "0.15", {"data": 32, "model": 1}),
    "wmt-0.24b": (8, "0.24", {"data": 32, "model": 1}),
    "wmt-0.42b": (16, "0.42", {"data": 8, "model": 4}),
    "wmt-0.77b": (32, "0.77", {"data": 8, "model": 4}),
    "wmt-1.48b": (64, "1.48", {"data": 16, "model": 8}),
    "wmt-2.89b": (128, "2.89", {"data": 16, "model": 8}),
    "wmt-baseline": (16, "0.21", None),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_papers_tables(name):
    chosen, (heads, billions, axes) = preset(name), TABLES[name]
    assert f"{parameter_count(chosen.model) / 1e9:.2f}" == billions and chosen.model.heads == heads
    assert chosen.model.vocab == (32768 if name.startswith("lm") else 32512)
    if axes:
        assert mx.Mesh(chosen.mesh, abstract=True).axes == axes


def test_all_rows_of_the_tables_have_a_preset():
    assert list(TABLES) == [name for name, p in PRESETS.items() if p.family in ("paper", "translation")]


@pytest.mark.parametrize("name", [name for name in TABLES if name != "wmt-baseline"])
def test_the_papers_settings(name):
    """As published with Tensor2Tensor: mtf_transformer_paper_lm and mtf_transformer_paper_tr."""
    chosen, translates = preset(name), name.startswith("wmt")
    m, r = chosen.model, chosen.recipe
    assert (m.d_model, m.layers, m.d_kv) == (1024, 6, 128 if translates else 256)
    assert m.d_ff == m.heads * (512 if translates else 1024) and not m.tied
    assert (m.positions, m.max_length, m.norm, m.activation, m.biases) == ("learned", 256, "rms", "relu", "none")
    assert (m.dropout, m.dropout_shared, m.logit_jitter) == (0.1, "length", 0.01)
    assert m.label_smoothing == (0.1 if translates else 0.0) and m.dtype == "bfloat16"
    assert set(chosen.batch.values()) == {128 if translates else 256, 256}
    assert (r.optimizer, r.schedule, r.warmup, r.clip) == ("adafactor", "paper", 10_000, 0.0) and r.count_padding
    assert (r.steps, r.cooldown) == ((154_000, 51_400) if translates else (136_000, 13_600))


@pytest.mark.parametrize(("name", "billions"), [("modern-0.1b", 0.13), ("modern-1b", 1.1), ("modern-7b", 7.1)])
def test_modern_sizes(name, billions):
    assert parameter_count(preset(name).model) / 1e9 == pytest.approx(billions, rel=0.1)


def test_a_wrong_name():
    with pytest.raises(mx.ArgumentError, match='did you mean "lm-4.90b"'):
        preset("lm-4.9b")
