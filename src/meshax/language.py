"""The words of `import meshax as mx`: dims, tensors, operations, meshes, layouts and programs."""

from .dim import Dim, dims
from .errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    DimError,
    DtypeError,
    LayoutError,
    MeshaxError,
    MeshError,
    OptimizerError,
    ShapeError,
    SliceError,
    TrainingError,
)
from .layout import Layout
from .mesh import Mesh
from .ops import *  # noqa: F403  # what each module of operations lists in its __all__
from .ops import __all__ as _ops
from .ops import randomness as random
from .plan.compile import topologies as _topologies  # noqa: F401  # machines for mx.Mesh(topology=)
from .plan.search.layout_search import auto_layout
from .processes import gather_to_host
from .program import Program, put, spmd
from .spatial import *  # noqa: F403
from .spatial import __all__ as _spatial
from .tensors import Tensor, param, tensor

__all__ = [
    "ArgumentError", "CheckpointError", "DataError", "Dim", "DimError", "DtypeError", "Layout", "LayoutError", "Mesh",
    "MeshError", "MeshaxError", "OptimizerError", "Program", "ShapeError", "SliceError", "Tensor", "TrainingError",
    "auto_layout", "dims", "gather_to_host", "param", "put", "random", "spmd", "tensor", *_ops,
    *_spatial,
]  # fmt: skip
