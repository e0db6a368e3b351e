"""The same programs on a GPU, and compiled for TPUs: `make test-gpu`, `make test-tpu`."""

import jax
import numpy as np
import pytest

import decoder
import meshax as mx

LAYOUTS = [
    mx.Layout("batch:data heads:model d_ff:model vocab:model"),
    mx.Layout("batch:data heads:model d_ff:model vocab:model length:model"),
    mx.Layout("batch:data", params="d_model:data"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_decoder_trains_on_gpus(layout):
    mesh = mx.Mesh("data:-1 model:1")
    assert mesh.platform == "gpu"
    w, batch = decoder.init(), decoder.tokens()
    program = mx.spmd(decoder.sgd, mesh, layout)
    for _ in range(3):
        wanted_w, wanted = decoder.sgd(w, *batch)
        w, loss = program(w, *batch)
        np.testing.assert_allclose(float(loss), float(wanted), rtol=1e-3)  # matrix products in TF32
    for got, leaf in zip(jax.tree.leaves(w), jax.tree.leaves(wanted_w)):
        np.testing.assert_allclose(got, leaf, rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
def test_random_numbers_on_gpus_equal_jax_random():
    key, dims = jax.random.key(3), mx.dims(batch=7, length=5)
    got = mx.spmd(lambda: mx.random.randint(key, dims, 0, 1000), mx.Mesh("data:-1"), "batch:data")()
    assert (got.numpy() == np.asarray(jax.random.randint(key, (7, 5), 0, 1000))).all()


@pytest.mark.tpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_decoder_compiles_for_a_tpu_that_is_not_there(layout):
    mesh = mx.Mesh("data:2 model:4", topology="tpu v4:2x2x1")
    assert mesh.platform == "tpu" and not mesh.has_devices
    compiled = mx.spmd(decoder.sgd, mesh, layout).compile(decoder.init(), *decoder.tokens())
    assert compiled.memory_analysis().argument_size_in_bytes > 0
    assert "all-reduce" in compiled.as_text()
    with pytest.raises(mx.MeshError, match="no devices to run on"):
        mx.spmd(decoder.sgd, mesh, layout)(decoder.init(), *decoder.tokens())


@pytest.mark.tpu
def test_a_topology_that_does_not_exist_is_an_error():
    with pytest.raises(mx.MeshError, match="no compiler here for the topology 'tpu v9:1x1'"):
        mx.Mesh("data:2", topology="tpu v9:1x1")
