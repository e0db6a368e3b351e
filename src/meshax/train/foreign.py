"""From a folder of weights from elsewhere to a run, and back.

An imported run is one whose first checkpoint, at step 0, holds the weights alone, as they were there: in their dtype,
layer by layer, whatever the mesh. It is made tensor by tensor from views of the files, on no processor; whoever opens
the run reads the blocks that its layout asks for. The folder `hugging_face` of the run keeps what was beside the
weights, and in which file each tensor was, so that a run that was imported is exported as it came.
"""

import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from ..data.vocabulary import Vocabulary
from ..errors import CheckpointError, TrainingError
from ..files import write_whole
from ..models.contract import ModelConfig
from ..tensors import Tensor, is_tensor
from ..weights import Family, Folder, family_for, family_of
from ..weights.families import matched
from ..weights.folder import CONFIG as FOREIGN_CONFIG
from ..weights.folder import GENERATION, INDEX, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS, read_json
from ..weights.loading import sources_of, view_of
from ..weights.names import Place, named_leaves, parameters, stack_and_layer
from ..weights.safetensors import DTYPES, Entry, write_file
from .checkpoint import Checkpoints
from .config import TrainConfig
from .corpus import VOCABULARY
from .options import CONFIG, read_options
from .record import versions
from .starting import CHECKPOINTS, IMPORTED, Weights, checkpoints_of

ORIGIN, TENSORS = "hugging_face", "tensors.json"
_LONGEST = 1024  # tokens in an example of an imported run, unless it is told
_RATE = 1e-5  # which changes trained weights with care
_SHARD_BYTES = 5 * 10**9  # of a file, at most
_WORDS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def import_folder(source: str | Path, config: TrainConfig, tokenizer: str = "") -> ModelConfig:
    """Makes a run of a folder's weights, and returns its model.

    Args:
        source: the folder.
        config: of the run, but for its model.
        tokenizer: a `tokenizer.json`; none: that of the folder.
    """
    folder, directory = Folder(source), config.directory()
    family = family_of(folder.config)
    model = family.model(folder.config)
    places = matched(folder, family, model)
    vocabulary = _vocabulary(folder, tokenizer, model.vocab)
    if (directory / CONFIG).exists() or (directory / CHECKPOINTS).exists():
        raise TrainingError(f"there is a run in {str(directory)!r} already.", fix="choose another out=.")
    origin = directory / ORIGIN
    origin.mkdir(parents=True, exist_ok=True)
    for document in folder.documents():
        shutil.copyfile(document, origin / document.name)
    write_whole(origin / TENSORS, json.dumps(_description(folder, places), indent=1))
    vocabulary.save(directory / VOCABULARY)
    with Checkpoints(directory / CHECKPOINTS) as checkpoints:
        extra = {"step": 0, IMPORTED: family.name, "vocabulary": vocabulary.fingerprint}
        checkpoints.save(0, Weights(_views(folder, model, places)), extra, wait=True)
    length = config.length or min(model.max_length, _LONGEST)
    optimizer = replace(config.optimizer, rate=config.optimizer.rate or _RATE)
    run = replace(config, preset=family.kind, model_=asdict(model), length=length, optimizer=optimizer)
    write_whole(directory / CONFIG, run.resolved().to_json(versions=versions()))
    return model


def _vocabulary(folder: Folder, tokenizer: str, size: int) -> Vocabulary:
    path = Path(tokenizer).expanduser() if tokenizer else folder.path / TOKENIZER
    if not path.is_file():
        raise CheckpointError(
            "a folder of weights has no tokenizer that can be read.",
            values=f"no {path}",
            rule=f"tokenizers are read from {TOKENIZER}, which the library tokenizers writes.",
            fix="save it there: AutoTokenizer.from_pretrained(...).save_pretrained(...); or name one: tokenizer=.",
        )
    vocabulary = Vocabulary.from_tokenizer(path)
    if vocabulary.size > size:
        raise CheckpointError(
            f"the tokenizer has {vocabulary.size} tokens, the model {size}.",
            values=str(path),
            rule="every token needs a row of the embedding.",
            fix="name the tokenizer that belongs to the model.",
        )
    return vocabulary


def _description(folder: Folder, places: dict[str, list[Place]]) -> dict[str, Any]:
    """Returns where each tensor was and of which dtype, to write it the same way again."""
    files = {name: {"file": folder.file_of[name], "dtype": folder.tensors[name].dtype} for name in places}
    return {"tensors": files, "metadata": {name: file.metadata for name, file in folder.files.items()}}


def _views(folder: Folder, model: Any, places: dict[str, list[Place]]) -> Any:
    """Returns the model as a tree of views of files, layer by layer."""
    tree, sources = parameters(model, "unrolled"), sources_of(places)
    leaves = [
        Tensor(view_of(folder, sources, *stack_and_layer(name)), leaf.dims, leaf.role)
        for name, leaf in named_leaves(tree).items()
    ]
    return jax.tree.unflatten(jax.tree.structure(tree, is_leaf=is_tensor), leaves)


def export_run(config: TrainConfig, to: str | Path, step: Any = "latest", dtype: str = "") -> Path:
    """Writes a checkpoint of a run as a folder for other libraries, and returns the folder.

    Args:
        config: of the run.
        to: the folder to make.
        step: a step, "latest" or "best".
        dtype: of the weights: float32, bfloat16 or float16; none: what they were imported in, else float32.
    """
    directory, target, model = config.directory(), Path(to).expanduser(), cast(Any, config.model())
    if dtype and dtype not in _WORDS:
        raise CheckpointError(f"weights are not exported as {dtype!r}.", fix=f"choose one of {', '.join(_WORDS)}.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        state = "not empty" if target.is_dir() else "a file"
        raise CheckpointError(f"the folder to export to is {state}.", values=str(target), fix="name another one.")
    origin = _origin(directory)
    family = family_of(read_json(origin / FOREIGN_CONFIG)) if origin.exists() else family_for(model)
    description = read_json(origin / TENSORS) if origin.exists() else {"tensors": {}, "metadata": {}}
    with checkpoints_of(directory) as checkpoints:
        manifest, reader = checkpoints.on_host(step)
        places = family.places(model, description["tensors"] or None)
        entries = {
            name: Entry(_WORDS.get(dtype) or description["tensors"].get(name, {}).get("dtype", "F32"), one[0].shape())
            for name, one in places.items()
        }

        def read(name: str) -> np.ndarray:
            tensor = np.empty(entries[name].shape, DTYPES[entries[name].dtype])
            for place in places[name]:
                stack = f".model{place.parameter}"
                alone = f".model.layers[{place.layer}]{place.parameter.removeprefix('.layers')}"
                is_stack = place.layer is not None and stack in manifest.arrays
                array = reader.whole(
                    stack if is_stack or place.layer is None else alone, place.layer if is_stack else None
                )
                place.view(tensor)[...] = array
            return tensor

        target.mkdir(parents=True, exist_ok=True)
        files = _files(entries, description)
        for file, names in files.items():
            metadata = description["metadata"].get(file, {"format": "pt"})
            write_file(target / file, {name: entries[name] for name in names}, read, metadata)
    if len(files) > 1 or list(files) != [WEIGHTS]:
        totals = {
            "total_parameters": sum(math.prod(entry.shape) for entry in entries.values()),
            "total_size": sum(entry.num_bytes for entry in entries.values()),
        }
        index = {"metadata": totals, "weight_map": {name: file for file, names in files.items() for name in names}}
        write_whole(target / INDEX, json.dumps(index, indent=2, sort_keys=True) + "\n")
    _write_documents(target, origin, family, model, Vocabulary.load(directory / VOCABULARY), dtype)
    return target


def _origin(directory: Path) -> Path:
    """Returns the folder that keeps what the weights came with: of the run, or of the one it started from."""
    while not (directory / ORIGIN).exists() and (directory / CONFIG).exists():
        source = read_options(directory / CONFIG, TrainConfig).from_
        if not source:
            break
        directory = Path(source).expanduser()
    return directory / ORIGIN


def _files(entries: dict[str, Entry], description: dict[str, Any]) -> dict[str, list[str]]:
    """Returns which tensors go into which file: as they came, or so that no file is too long."""
    files: dict[str, list[str]] = {}
    if description["tensors"]:
        for name in entries:
            files.setdefault(description["tensors"][name]["file"], []).append(name)
        return files
    parts: list[list[str]] = [[]]
    size = 0
    for name, entry in entries.items():
        if parts[-1] and size + entry.num_bytes > _SHARD_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += entry.num_bytes
    if len(parts) == 1:
        return {WEIGHTS: parts[0]}
    return {f"model-{i:05}-of-{len(parts):05}.safetensors": names for i, names in enumerate(parts, 1)}


def _write_documents(
    target: Path, origin: Path, family: Family, model: Any, vocabulary: Vocabulary, dtype: str
) -> None:
    """Writes what stands beside the weights: as it came, or made from the model and its vocabulary."""
    if origin.exists():
        for document in sorted(origin.iterdir()):
            if document.name not in (TENSORS, FOREIGN_CONFIG):
                shutil.copyfile(document, target / document.name)
        if not dtype:
            shutil.copyfile(origin / FOREIGN_CONFIG, target / FOREIGN_CONFIG)
            return
        config = {k: v for k, v in read_json(origin / FOREIGN_CONFIG).items() if k not in ("dtype", "torch_dtype")}
        write_whole(target / FOREIGN_CONFIG, _json(config | {"torch_dtype": dtype}))
        return
    ids = {"bos_token_id": vocabulary.begin, "eos_token_id": vocabulary.end}
    write_whole(target / FOREIGN_CONFIG, _json(family.config(model, dtype or "float32") | ids))
    write_whole(target / GENERATION, _json(ids))
    tokenizer, words = vocabulary.elsewhere()
    write_whole(target / TOKENIZER, tokenizer)
    write_whole(target / TOKENIZER_CONFIG, _json({"tokenizer_class": "PreTrainedTokenizerFast", **words}))


def _json(table: dict[str, Any]) -> str:
    return json.dumps(table, indent=2) + "\n"
