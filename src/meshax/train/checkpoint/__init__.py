"""Checkpoints: what a run needs to go on after a crash, on the same machine or on another."""

from .directory import Checkpoints
from .failures import Damaged, NotSaved

__all__ = ["Checkpoints", "Damaged", "NotSaved"]
