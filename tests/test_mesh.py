"""Meshes on real devices, on some of them, and on none."""

from types import SimpleNamespace

import jax
import pytest
from jax.experimental import topologies

import meshax as mx
from messages import pinned


@pytest.mark.parametrize("spec", ["rows:2 cols:4", "rows:2,cols:4", "rows:2;cols:4", " rows:2 ,\n cols:4 "])
def test_a_mesh_is_parsed(spec):
    mesh = mx.Mesh(spec)

    assert mesh.axes == {"rows": 2, "cols": 4}
    assert mesh.size == 8
    assert mesh.count(("rows", "cols")) == 8 and mesh.count(("cols",)) == 4 and mesh.count(()) == 1
    assert repr(mesh) == "Mesh(rows:2 cols:4)"


@pytest.mark.parametrize(
    ("spec", "num_devices", "axes"),
    [
        ("rows:-1", 8, {"rows": 8}),
        ("rows:2 cols:-1", 8, {"rows": 2, "cols": 4}),
        ("rows:-1 cols:3", 6, {"rows": 2, "cols": 3}),
        ("rows:4 cols:-1", 4, {"rows": 4, "cols": 1}),
    ],
)
def test_minus_one_is_all_remaining_devices(spec, num_devices, axes):
    assert mx.Mesh(spec, jax.devices()[:num_devices]).axes == axes


def test_a_small_mesh_stands_on_the_first_devices():
    mesh = mx.Mesh("rows:3")

    assert mesh.jax_mesh.devices.tolist() == jax.devices()[:3]
    assert mesh.has_devices


def test_explicit_devices_keep_their_order():
    devices = jax.devices()[6:1:-1]

    mesh = mx.Mesh("rows:2 cols:2", devices)

    assert mesh.jax_mesh.devices.tolist() == [devices[:2], devices[2:4]]


def test_an_abstract_mesh_has_no_devices_and_any_size():
    mesh = mx.Mesh("rows:64 cols:64", abstract=True)

    assert mesh.size == 4096
    assert not mesh.has_devices
    assert repr(mesh) == "Mesh(rows:64 cols:64, abstract)"


def test_meshes_are_equal_if_their_axes_and_devices_are():
    mesh = mx.Mesh("rows:2")

    assert mesh == mx.Mesh("rows:2") and hash(mesh) == hash(mx.Mesh("rows:2"))
    assert mesh == mx.Mesh("rows:2", jax.devices()[:2])
    assert mesh != mx.Mesh("rows:2", jax.devices()[2:4])
    assert mesh != mx.Mesh("cols:2")
    assert mesh != mx.Mesh("rows:2", abstract=True)


class OnHost:
    """A device that says on which host it is, as GPUs and slices of TPUs do."""

    device_kind = "NVIDIA H100"

    def __init__(self, number, host, platform="gpu"):
        self.id, self.process_index, self.slice_index, self.platform = number, number, host, platform

    def __repr__(self):
        return f"{self.id}@{self.slice_index}"


def test_the_last_axes_stay_inside_a_host(monkeypatch):
    devices = [OnHost(number, number % 2) for number in range(8)]  # processes came up in another order
    monkeypatch.setattr(jax, "devices", lambda: devices)
    mesh, turned = mx.Mesh("data:4 model:2"), mx.Mesh("data:4 model:2", across="model")

    assert [[d.slice_index for d in line] for line in mesh.jax_mesh.devices] == [[0, 0], [0, 0], [1, 1], [1, 1]]
    assert mesh.hosts == {"data": 2, "model": 1} and repr(mesh) == "Mesh(data:4 model:2, data across hosts)"
    assert [[d.slice_index for d in line] for line in turned.jax_mesh.devices] == [[0, 1]] * 4
    assert turned.hosts == {"data": 1, "model": 2} and repr(turned) == "Mesh(data:4 model:2, model across hosts)"
    assert repr(mx.Mesh("data:4")) == "Mesh(data:4)"
    assert mx.Mesh("a:2 b:2 c:2", devices, across="c+a").order == ("c", "a", "b"), "whose order is the user's"
    assert mx.Mesh("a:2", abstract=True).hosts == {"a": 1}


@pytest.mark.parametrize("spec", ["rows:-1", "rows:1"])
def test_a_mesh_of_no_devices_is_refused(spec):
    with pytest.raises(mx.MeshError, match="there are no devices for the mesh."):
        mx.Mesh(spec, [])


MISTAKES = {
    "an axis between hosts that there is not": (
        mx.MeshError,
        lambda: mx.Mesh("rows:2 cols:4", across="row"),
        """
        there is no axis 'row' to go from host to host.
          values: 'rows:2 cols:4', across='row'
        """,
    ),
    "not a string": (
        mx.MeshError,
        lambda: mx.Mesh({"rows": 2}),
        """
        a mesh is described by a string, not by dict.
          values: {'rows': 2}
          fix: write for example mx.Mesh("rows:2 cols:4").
        """,
    ),
    "no axis": (
        mx.MeshError,
        lambda: mx.Mesh(" "),
        """
        a mesh has at least one axis.
          values: ' '
          fix: write for example mx.Mesh("rows:2 cols:4").
        """,
    ),
    "a part without a size": (
        mx.MeshError,
        lambda: mx.Mesh("rows:2 cols"),
        """
        'cols' is not a part of a mesh.
          values: 'rows:2 cols'
          rule: each part is name:value.
          fix: write for example mx.Mesh("rows:2 cols:4").
        """,
    ),
    "an equals sign": (
        mx.MeshError,
        lambda: mx.Mesh("rows=2"),
        """
        'rows=2' is not a part of a mesh.
          values: 'rows=2'
          rule: each part is name:value.
          fix: write for example mx.Mesh("rows:2 cols:4").
        """,
    ),
    "a name that is none": (
        mx.MeshError,
        lambda: mx.Mesh("rows:2 4th:4"),
        """
        '4th' is not a name for a mesh axis.
          values: 'rows:2 4th:4'
          fix: write for example mx.Mesh("rows:2 cols:4").
        """,
    ),
    "an axis twice": (
        mx.MeshError,
        lambda: mx.Mesh("rows:2 rows:4"),
        """
        mesh axis 'rows' is given twice.
          values: 'rows:2 rows:4'
          fix: give each axis a name of its own.
        """,
    ),
    "a size of zero": (
        mx.MeshError,
        lambda: mx.Mesh("rows:0"),
        """
        '0' is not a size for mesh axis 'rows'.
          values: 'rows:0'
          rule: a size is a positive integer, or -1 for all remaining devices.
        """,
    ),
    "a negative size": (
        mx.MeshError,
        lambda: mx.Mesh("rows:-2"),
        """
        '-2' is not a size for mesh axis 'rows'.
          values: 'rows:-2'
          rule: a size is a positive integer, or -1 for all remaining devices.
        """,
    ),
    "two sizes to infer": (
        mx.MeshError,
        lambda: mx.Mesh("rows:-1 cols:-1"),
        """
        the size of a mesh axis cannot be inferred.
          values: 'rows:-1 cols:-1'
          rule: at most one size may be -1, and only where there are devices to count.
          fix: write the sizes out.
        """,
    ),
    "a size to infer from nothing": (
        mx.MeshError,
        lambda: mx.Mesh("rows:-1", abstract=True),
        """
        the size of a mesh axis cannot be inferred.
          values: 'rows:-1'
          rule: at most one size may be -1, and only where there are devices to count.
          fix: write the sizes out.
        """,
    ),
    "a list of no devices": (
        mx.MeshError,
        lambda: mx.Mesh("rows:2", devices=[]),
        """
        there are no devices for the mesh.
          values: devices=[] for 'rows:2'
          fix: pass some, or leave out devices=.
        """,
    ),
    "devices that do not divide": (
        mx.MeshError,
        lambda: mx.Mesh("rows:3 cols:-1"),
        """
        8 devices do not divide into groups of 3.
          values: 'rows:3 cols:-1'
          fix: choose sizes whose product divides the number of devices.
        """,
    ),
    "more processors than devices": (
        mx.MeshError,
        lambda: mx.Mesh("rows:4 cols:4"),
        (
            "the mesh has 16 processors, but there are only 8 devices.\n"
            "  values: {'rows': 4, 'cols': 4} on cpu devices\n"
            '  fix: on a CPU, call jax.config.update("jax_num_cpu_devices", 16) before the first use of JAX, or '
            "trace without devices: mx.Mesh(..., abstract=True)."
        ),
    ),
    "more processors than devices given": (
        mx.MeshError,
        lambda: mx.Mesh("rows:4", jax.devices()[:2]),
        (
            "the mesh has 4 processors, but there are only 2 devices.\n"
            "  values: {'rows': 4} on cpu devices\n"
            '  fix: on a CPU, call jax.config.update("jax_num_cpu_devices", 4) before the first use of JAX, or '
            "trace without devices: mx.Mesh(..., abstract=True)."
        ),
    ),
    "abstract devices": (
        mx.MeshError,
        lambda: mx.Mesh("rows:2", jax.devices(), abstract=True),
        """
        a mesh stands on devices, or is abstract, or has a topology: only one of the three.
          values: 'rows:2'
          fix: leave out the other arguments.
        """,
    ),
    "a topology without a name": (
        mx.MeshError,
        lambda: mx.Mesh("rows:2", topology="tpu"),
        """
        'tpu' is not a topology.
          rule: a topology is a platform and a name.
          fix: write for example mx.Mesh("rows:32 cols:16", topology="tpu v2:16x16").
        """,
    ),
}

test_messages = pinned(MISTAKES)


def test_message_of_a_topology_of_another_size(monkeypatch):
    machine = SimpleNamespace(devices=jax.devices()[:4])
    monkeypatch.setattr(topologies, "get_topology_desc", lambda platform, topology_name: machine)

    with pytest.raises(mx.MeshError) as raised:
        mx.Mesh("rows:2 cols:4", topology="tpu v2:2x1")

    assert str(raised.value) == (
        "the mesh has 8 processors, the topology 'tpu v2:2x1' has 4.\n"
        "  values: {'rows': 2, 'cols': 4}\n"
        "  fix: choose sizes whose product is the number of cores of the topology."
    )


def test_message_of_a_topology_without_its_compiler(monkeypatch):
    def refuse(platform, topology_name):
        raise RuntimeError(f"no support for {platform}\nand more that only JAX's authors need")

    monkeypatch.setattr(topologies, "get_topology_desc", refuse)

    with pytest.raises(mx.MeshError) as raised:
        mx.Mesh("rows:2", topology="tpu v2:16x16")

    assert str(raised.value) == (
        "there is no compiler here for the topology 'tpu v2:16x16'.\n"
        "  values: no support for tpu\n"
        "  rule: TPUs need libtpu and TPU_SKIP_MDS_QUERY=1; GPUs jax's for CUDA, and where none is JAX_PLATFORMS=cpu.\n"
        "  fix: pip install 'meshax[tpu]' or 'meshax[cuda]', as the installed jax asks for; or use abstract=True."
    )
