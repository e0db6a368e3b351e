"""What an error says on the command line.

The library speaks to those who write Python: its advice names arguments and methods. Here the same advice names options
and commands, and the line of Python that caused an error is left out where the user has written none.
"""

import re
from dataclasses import fields
from pathlib import Path
from sys import argv

from ..errors import MeshaxError
from ..models.fields import fields_by_kind
from ..train.options import OptimizerOptions, TrainOptions
from ..train.text_options import DataOptions
from .options import Command, OnProgram, UsageError

SPELLINGS = {
    'source="news.en", target="news.fr", or both="news.tsv".': "--data.source news.en --data.target news.fr, "
    "or --data.pairs news.tsv.",
    'fields=("en", "fr")': "--data.pair-fields en fr",
    'fields=("2", "3")': "--data.pair-fields 2 3",
    "or name one: tokenizer=.": "or name one: --tokenizer FILE.",
    "for example beams=4, alpha=0.6.": "for example --beam 4 --length-penalty 0.6.",
    'write for example mx.Mesh("rows:2 cols:4").': 'write for example "rows:2 cols:4".',
    'write for example mx.Layout("batch:rows hidden:cols").': 'write for example "batch:rows hidden:cols".',
    "; or use abstract=True.": ".",
    'make each line a document: per="line".': "make each line a document: data.lines=True.",
    "call meshax.data.tokenize(text, vocabulary, folder): it": "run meshax train again: it",
    "make it again: meshax.data.tokenize(text, vocabulary, folder).": "remove it, and run meshax train again.",
    "name the file that Vocabulary.save wrote": "name the vocabulary.json of a run",
    "give this one a directory of its own; to look only, open it with read_only=True.": "choose another --out.",
    "; for another dtype, pass dtype=; for a part, partial=True.": ".",
    "restore into a tree as it was saved": "take the options that it was trained with",
    "save with metric=, or name a step.": "take a step by its number, or latest.",
    "keep fewer: keep_last, keep_best": "keep fewer: --keep-last, --keep-best",
    " or correct the directory, and save again.": " or correct the directory, and run the same command again.",
}
_NO_MEMORY = "RESOURCE_EXHAUSTED"
_DEVICES = re.compile(r"on a CPU, call jax\.config\.update\(.*?\) before.*?abstract=True\)\.")
_GROUPS = {"": TrainOptions, "data.": DataOptions, "optimizer.": OptimizerOptions}
_OF_TEXT = re.compile(r"(?<![\w.])(?=(?:field|errors|encoding)=)")  # arguments of `Text.find`
_NAMES = {group + field.name.rstrip("_") for group, options in _GROUPS.items() for field in fields(options)}
_NAMES |= {f"model.{field.name}" for kind in fields_by_kind().values() for field in kind}
_ASSIGNED = re.compile(
    rf"(?<![\w.])({'|'.join(sorted(map(re.escape, _NAMES), key=len, reverse=True))})"
    r"""=("[^"]*"|'[^']*'|\w+(?:\.\w+)*)?"""
)

_LAYOUT = re.compile(r"Layout\([^)]*\)")
_CONTRADICTED = re.compile(rf"(?<=, and )({'|'.join(map(re.escape, sorted(_NAMES)))})(?= is )")


def words_for(error: Exception, command: Command | None) -> str:
    """Returns what to say of an error: ours in the words of the command line, of others their first line.

    Args:
        error: what was raised.
        command: what was running; None if the command line could not be read.
    """
    if isinstance(error, UnicodeEncodeError):  # of the folder we are in, or a name in a file: alone, or quoted
        before, after = (re.split('["\n]', text) for text in (error.object[: error.start], error.object[error.start :]))
        name = ascii(before[-1] + after[0])
        return f"{name} cannot be named in this locale.\n  fix: set a UTF-8 one, as in LC_ALL=C.UTF-8."
    if not isinstance(error, MeshaxError):
        first = (str(error).strip().splitlines() or [""])[0]
        if _NO_MEMORY in first:
            return (
                f"there is not memory enough.\n  values: {first.partition(_NO_MEMORY)[2].lstrip(': ')}\n"
                "  fix: do less at once (a smaller batch, fewer slots, beams), or split more: meshax layout finds how."
            )
        return f"{type(error).__name__}: {first} (--debug shows where)"
    from ..plan.compile.worker import user_notes  # after the help, which needs no JAX

    has_program = isinstance(command, OnProgram) and not isinstance(error, UsageError)
    return "\n".join([spelled(str(error)), *(user_notes(error, Path(argv[0]).name) if has_program else ())])


def spelled(text: str) -> str:
    """Returns a message with options in the place of arguments."""
    for python, option in SPELLINGS.items():
        text = text.replace(python, option)
    layouts = _LAYOUT.findall(text)  # which say what they are, not what to write
    text = _ASSIGNED.sub(_option, _OF_TEXT.sub("data.", _LAYOUT.sub("\0", text)))
    text = re.sub("\0", lambda _: layouts.pop(0), text)
    text = _DEVICES.sub("choose a smaller mesh; meshax explain, plan and layout need no devices.", text)
    text = _CONTRADICTED.sub(lambda name: _flag(name[0]), text)
    name = text.partition(" is ")[0]
    return f"{_flag(name)}{text.removeprefix(name)}" if name in _NAMES else text


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _option(assigned: re.Match[str]) -> str:
    """Returns the option that stands for an argument: `--keep auto` for `keep="auto"`."""
    value = assigned[2] or ""
    if value.startswith('"') and " " not in value:
        value = value.strip('"')
    return _flag(assigned[1]) + (f" {value}" if value not in ("", "True") else "")
