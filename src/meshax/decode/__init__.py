"""Making text with a model."""

from .engine import Engine
from .requests import Request, Written

__all__ = ["Engine", "Request", "Written"]
