"""Processors that are not there, of a known kind: programs are traced as these would run them.

Layers ask the mesh what it stands on, and choose kernels for it. A plain abstract mesh stands on nothing, and the
program that is traced on it is one for CPUs.
"""

import contextlib
import threading
from typing import Any

import jax

from ...compat import for_a_while
from ...layout import current
from ...mesh import Mesh
from .hardware import Hardware

_assumed = threading.local()  # per thread: several may trace at once


class DescribedMesh(Mesh):
    """An abstract mesh that answers as one of such hardware.

    >>> from meshax.plan.cost.hardware import find
    >>> DescribedMesh("data:2 model:4", find("h200")).device_kind
    'NVIDIA H200'
    """

    def __init__(self, spec: str, hardware: Hardware, across: str = ""):
        """Arranges the processors, as `Mesh` does."""
        super().__init__(spec, abstract=True, across=across)
        self.hardware = hardware

    @property
    def platform(self) -> str:
        """What the processors would be: "cpu", "gpu", "tpu", or "" if the description does not say."""
        return self.hardware.platform

    @property
    def device_kind(self) -> str:
        """JAX's name for their kind."""
        return self.hardware.kind

    # What is traced for one kind is not what is traced for another, and JAX remembers traces by their mesh.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, DescribedMesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> Any:
        return self.jax_mesh, self.platform, self.device_kind


def described(mesh: Mesh, hardware: Hardware) -> Mesh:
    """Returns an abstract mesh as one of such hardware; what stands on devices or a topology stays as it is."""
    if not mesh.is_abstract or isinstance(mesh, DescribedMesh):
        return mesh
    return DescribedMesh(" ".join(f"{axis}:{n}" for axis, n in mesh.axes.items()), hardware, "+".join(mesh.order))


def assuming(hardware: Hardware) -> contextlib.AbstractContextManager[Any]:
    """Makes models inside as they are made for some hardware, whatever JAX runs on here."""
    return for_a_while(_assumed, "hardware", hardware)


def chosen_platform() -> str:
    """Returns the platform that a model is made for: what the mesh is described as, what is assumed, or JAX's own."""
    mesh, assumed = current().mesh, getattr(_assumed, "hardware", None)
    if isinstance(mesh, DescribedMesh) and mesh.platform:
        return mesh.platform
    return (assumed.platform if assumed is not None else "") or jax.default_backend()
