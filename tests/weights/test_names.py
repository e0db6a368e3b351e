"""From a tensor to a parameter and back: a view, whatever the grouping of heads."""

import numpy as np
import pytest

import meshax as mx
from meshax.models.decoder import DecoderConfig
from meshax.weights.names import Place, Row, named_leaves, parameters, places

d_model, kv_heads, heads, d_kv = mx.dims(d_model=5, kv_heads=2, heads=3, d_kv=4)


def test_heads_of_groups():
    place = Place(".q", None, "kv_heads*heads*d_kv d_model", (d_model, kv_heads, heads, d_kv))
    tensor = np.arange(24 * 5).reshape(24, 5)
    assert place.shape() == (24, 5)
    view = place.view(tensor)
    assert view.shape == (5, 2, 3, 4) and np.shares_memory(view, tensor)
    assert view[1, 1, 2, 3] == tensor[1 * 12 + 2 * 4 + 3, 1]


def test_dims_that_a_parameter_lacks_are_passed_over():
    place = Place(".k", 1, "kv_heads*heads*d_kv d_model", (d_model, d_kv))
    assert place.shape() == (4, 5) and place.view(np.arange(20).reshape(4, 5)).shape == (5, 4)


def test_parts_of_a_tensor():
    tensor = np.arange(5 * 36).reshape(5, 36)
    for part in range(3):
        place = Place(".q", 0, f"d_model {part}/3*heads*d_kv", (d_model, heads, d_kv))
        assert place.shape() == (5, 36)
        np.testing.assert_array_equal(place.view(tensor), tensor[:, part * 12 : part * 12 + 12].reshape(5, 3, 4))
    written = np.zeros((5, 36))
    Place(".q", 0, "d_model 1/3*heads*d_kv", (d_model, heads, d_kv)).view(written)[...] = 7
    assert (written[:, 12:24] == 7).all() and written.sum() == 7 * 5 * 12


CONFIG = DecoderConfig(d_model=8, heads=2, d_kv=4, d_ff=6, layers=3, vocab=10, tied=True)


@pytest.mark.parametrize("layers_as", ["loop", "unrolled"])
def test_parameters_by_name(layers_as):
    names = named_leaves(parameters(CONFIG, layers_as))
    assert (".layers.attention.q.weight" in names) == (layers_as == "loop")
    assert (".layers[2].attention.q.weight" in names) == (layers_as == "unrolled")


def test_a_parameter_without_a_tensor_is_a_mistake_of_ours():
    with pytest.raises(AssertionError, match="no tensor is known for"):
        places(CONFIG, (Row("wte", "embedding.weight", "vocab d_model"),))
