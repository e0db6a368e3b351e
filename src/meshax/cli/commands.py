"""The commands, by name."""

from collections.abc import Sequence

from .average import Average
from .bench_decode import BenchDecode
from .bench_step import BenchStep
from .bleu import Bleu
from .calibrate import Calibrate
from .evaluate import Evaluate
from .explain import Explain
from .export_weights import ExportWeights
from .generate import Generate
from .import_weights import ImportWeights
from .launch import Launch, split_command
from .layout import FindLayout
from .options import Command, UsageError
from .parsing import parse
from .plan import MakePlan
from .presets import Presets
from .score import Score
from .segment import Segment
from .serve import Serve
from .train import Train, train_command
from .translate import Translate

_COMMANDS = {
    "train": Train,
    "launch": Launch,
    "eval": Evaluate,
    "generate": Generate,
    "translate": Translate,
    "bleu": Bleu,
    "segment": Segment,
    "score": Score,
    "serve": Serve,
    "average": Average,
    "import": ImportWeights,
    "export": ExportWeights,
    "presets": Presets,
    "explain": Explain,
    "plan": MakePlan,
    "layout": FindLayout,
    "bench": {"step": BenchStep, "decode": BenchDecode, "calibrate": Calibrate},
}


def parse_command(argv: Sequence[str]) -> Command:
    """Returns the command that a command line asks for, with its options."""
    _check_characters(argv)
    argv, launched = split_command(argv)
    command = parse({**_COMMANDS, "train": train_command(argv)}, argv)
    if isinstance(command, Launch):
        command.command = launched
    return command


def _check_characters(argv: Sequence[str]) -> None:
    """Raises if a word has bytes that are no characters here: it could not be stored, nor shown."""
    for word in argv:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(
                "the command line is not UTF-8.",
                values=ascii(word),
                fix="set a UTF-8 locale, as in LC_ALL=C.UTF-8; a file with such a name needs another one.",
            ) from None
