"""Optimizers: optax's, run on the slices each processor stores, and refused where that would be wrong."""

from .elementwise import Optimizer, from_optax

__all__ = ["Optimizer", "from_optax"]
