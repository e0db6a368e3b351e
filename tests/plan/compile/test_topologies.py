"""The table of machines to compile for. That it is the compiler's own is `make test-tpu`."""

import os

import pytest

import meshax as mx
from meshax.plan.compile.topologies import (
    GPUS,
    TOPOLOGIES,
    check_compiler,
    check_size,
    check_topology,
    hardware_of,
    plain_topology,
)
from meshax.plan.cost.hardware import KNOWN
from messages import pinned


@pytest.mark.parametrize(
    ("topology", "processors"),
    [
        ("tpu v2:16x16", 512),
        ("tpu v3:32x32", 2048),
        ("tpu v4:2x2x1", 8),
        ("tpu v5e:16x16", 256),
        ("tpu v5p:8x8x8", 512),
        ("gpu h200:8", 8),
        ("gpu a100:64x8", 512),
    ],
)
def test_processors(topology, processors):
    assert check_topology(topology) == processors


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_every_kind_is_known_hardware(kind):
    mesh = mx.Mesh("data:8", abstract=True)
    mesh.topology = f"tpu {kind}:2x2"
    assert hardware_of(mesh).name == f"tpu-{kind}"
    assert [check_topology(f"tpu {kind}:{size}") for size in TOPOLOGIES[kind][1].split()]


test_messages = pinned(
    {
        "a size that is not made": (
            mx.MeshError,
            lambda: check_topology("tpu v5e:3x3"),
            """
            a TPU v5e does not come in the size 3x3.
              rule: the first two numbers are even; the usual sizes are:
                tpu v5e: 2x2 (4), 2x4 (8), 4x4 (16), 4x8 (32), 8x8 (64), 8x16 (128), 16x16 (256)
                (in brackets: processors, which a mesh has to have)
              fix: choose one of these.
            """,
        ),
        "another size": (
            mx.MeshError,
            lambda: check_size("tpu v2:2x2", mx.Mesh("data:4", abstract=True)),
            """
            the mesh has 4 processors, the topology 'tpu v2:2x2' has 8.
              values: {'data': 4}
              fix: choose sizes whose product is the number of cores of the topology.
            """,
        ),
        "too many virtual ones": (
            mx.MeshError,
            lambda: check_size("cpu", mx.Mesh("data:100000", abstract=True)),
            """
            100,000 virtual processors are too many for one machine.
              values: Mesh(data:100000, abstract)
              fix: plan for at most 4,096, or for TPUs.
            """,
        ),
    }
)


@pytest.mark.parametrize(
    ("topology", "fix"),
    [
        *((name, 'write for example "tpu v2:16x16", or "gpu h200:8".') for name in ("tpu v9:2x2", "tpu", "", "gpu")),
        ("h200:4x8", 'did you mean "gpu h200:4x8"?'),
        ("h100", 'did you mean "gpu h100:8"?'),
        ("v2:4x4", 'did you mean "tpu v2:4x4"?'),
        ("tpu v5p", 'did you mean "tpu v5p:2x2x1"?'),
    ],
)
def test_a_topology_that_does_not_exist(topology, fix):
    with pytest.raises(mx.MeshError) as error:
        check_topology(topology)
    text = str(error.value)
    assert text.startswith(
        f"there is no topology {topology!r}.\n"
        '  rule: "cpu" is this machine\'s processor; the TPU compiler knows:\n    tpu v2: 2x2 (8), '
    )
    assert all(f"\n    tpu {kind}: " in text for kind in TOPOLOGIES)
    assert text.endswith(f"\n  fix: {fix}")


def test_topologies_are_read_as_people_write_them():
    assert [plain_topology(text) for text in ("CPU", " TPU  V2:2x2 ")] == ["cpu", "tpu v2:2x2"]


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        (
            "tpu v2:2x2",
            "the TPU compiler is not installed.\n"
            "  rule: it is the package libtpu, in the version that the installed jax asks for; it needs no TPU.\n"
            "  fix: pip install 'meshax[tpu]'",
        ),
        (
            "gpu h200:8",
            "the compiler for GPUs is not installed.\n"
            "  rule: it comes with jax's packages for CUDA, in the version of the installed jax; it needs no GPU.\n"
            "  fix: pip install 'meshax[cuda]'",
        ),
    ],
)
def test_a_missing_compiler(topology, words, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_compiler("cpu")
    with pytest.raises(mx.MeshError) as error:
        check_compiler(topology)
    assert str(error.value) == words


@pytest.mark.parametrize("name", ["h500:8", "h200", "h200:0", "h200:0x8", "h200:8x"])
def test_gpus_that_do_not_exist(name):
    for ask in (lambda: check_topology(f"gpu {name}"), lambda: mx.Mesh("data:8", topology=f"gpu {name}")):
        with pytest.raises(mx.MeshError) as error:
            ask()
        assert str(error.value) == (
            f"there are no GPUs {name!r}.\n"
            "  rule: a kind (a100, h100, h200, b200), and how many: of one host, or hosts and the GPUs of each.\n"
            '  fix: write for example "gpu h200:8", or "gpu h200:4x8".'
        )


@pytest.mark.parametrize("kind", GPUS)
def test_gpus_are_known_hardware(kind):
    mesh = mx.Mesh("data:8", abstract=True)
    mesh.topology = f"gpu {kind}:8"
    assert hardware_of(mesh) is KNOWN[kind]


@pytest.mark.cuda
@pytest.mark.parametrize("kind", GPUS)
def test_gpus_that_are_not_there(kind):
    mesh = mx.Mesh("data:2 model:4", topology=f"gpu {kind}:8")
    assert mesh.size == 8 and not mesh.has_devices and mesh.platform == "gpu" and mesh.device_kind == KNOWN[kind].kind
    assert mx.Mesh("data:-1", topology=f"gpu {kind}:4x8").size == 32


@pytest.mark.tpu
@pytest.mark.parametrize("topology", [f"tpu {kind}:{sizes.split()[0]}" for kind, (_, sizes) in TOPOLOGIES.items()])
def test_the_table_is_the_compilers(topology):
    assert os.environ["TPU_SKIP_MDS_QUERY"] == "1"
    assert mx.Mesh("data:-1", topology=topology).size == check_topology(topology)
