"""A folder as Hugging Face's libraries write it: `config.json`, files of tensors, a tokenizer."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError, shortened
from .safetensors import Entry, File

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# What a folder has beside its tensors, and keeps on its way through a run.
DOCUMENTS = (
    *(CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja"),
)
_MAX_JSON = 1 << 30  # bytes


class Folder:
    """A folder of weights. To open it reads its configuration and the headers of its files, no tensor."""

    def __init__(self, path: str | Path):
        """Reads what the folder holds."""
        self.path = Path(path).expanduser()
        if not self.path.is_dir():
            raise CheckpointError(
                "there is no such folder of weights.", values=str(self.path), fix="name one with a config.json."
            )
        self.config = read_json(self.path / CONFIG)
        names = self._file_names()
        self.files = {name: File(self.path / name) for name in names}
        self.file_of = {tensor: name for name, file in self.files.items() for tensor in file.tensors}
        self._check_index()

    def _file_names(self) -> list[str]:
        if (self.path / INDEX).exists():
            self._index = read_json(self.path / INDEX).get("weight_map")
            if not isinstance(self._index, dict) or not all(_is_file_name(name) for name in self._index.values()):
                raise CheckpointError(
                    "the index of a folder of weights is damaged.",
                    values=str(self.path / INDEX),
                    rule='its "weight_map" says for each tensor in which file of the folder it is.',
                    fix="fetch the folder again.",
                )
            names = sorted(set(self._index.values()))
        else:
            self._index, names = None, [WEIGHTS]
        missing = [name for name in names if not (self.path / name).is_file()]
        if missing:
            pickled = sorted(path.name for path in self.path.glob("*.bin")) + sorted(
                path.name for path in self.path.glob("*.pt*")
            )
            raise CheckpointError(
                "a folder lacks files of weights.",
                values=f"{self.path}: no {', '.join(missing)}" + (f"; {', '.join(pickled)}" if pickled else ""),
                rule="weights are read from safetensors files; pickles (.bin, .pt) could run any code, and never are.",
                fix="fetch the folder again, or save the model with save_pretrained(safe_serialization=True).",
            )
        return names

    def _check_index(self) -> None:
        differences = []
        if self._index is not None:
            for tensor in sorted({*self._index, *self.file_of}):
                said, there = self._index.get(tensor, "no file"), self.file_of.get(tensor, "no file")
                if said != there:
                    differences.append(f"{tensor}: {there}, not {said}")
        elif len(self.file_of) != sum(len(file.tensors) for file in self.files.values()):
            differences.append("a tensor is in two files")
        if differences:
            raise CheckpointError(
                "the files of a folder of weights are not as its index says.",
                values=shortened(differences, 12),
                fix="fetch the folder again.",
            )

    @property
    def tensors(self) -> dict[str, Entry]:
        """What the files hold, by name."""
        return {name: entry for file in self.files.values() for name, entry in file.tensors.items()}

    def array(self, name: str) -> np.ndarray:
        """Returns a tensor as a view of its file."""
        return self.files[self.file_of[name]].array(name)

    def documents(self) -> list[Path]:
        """Returns the files beside the tensors that are there."""
        return [path for name in DOCUMENTS if (path := self.path / name).is_file()]


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON file that holds a table."""
    try:
        if path.stat().st_size > _MAX_JSON:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("it holds no table")
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path.name!r} of a folder of weights cannot be read.",
            values=f"{path}: {getattr(error, 'strerror', None) or error}",
            fix="name a folder that save_pretrained, or meshax export, has written.",
        ) from None
    return data


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")
