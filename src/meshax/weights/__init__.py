"""Weights of models from elsewhere: Hugging Face folders, in and out.

`safetensors.py` knows files, `folder.py` folders of them, `families.py` which model a folder holds and what its tensors
are called, `names.py` how a tensor there becomes a parameter here, and `loading.py` puts them on a mesh.
"""

from .families import FAMILIES, Family, family_for, family_of
from .folder import Folder
from .loading import load

__all__ = ["FAMILIES", "Family", "Folder", "family_for", "family_of", "load"]
