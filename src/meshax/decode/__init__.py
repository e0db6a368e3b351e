"""Making text with a model."""

from .beams import BeamSearch, Hypothesis
from .engine import Engine
from .requests import Longest, Request, Written

__all__ = ["BeamSearch", "Engine", "Hypothesis", "Longest", "Request", "Written"]
