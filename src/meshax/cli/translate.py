"""`meshax translate`."""

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from ..errors import MeshaxError
from .options import UsageError, step_of, usage
from .written import OnTrained

if TYPE_CHECKING:
    from ..data.lines import Line
    from ..decode.translating import Translation, Translator

_WINDOW = 16  # times as many lines as are translated at once are sorted by their lengths
_COUNTED = 1 << 30  # bytes of a file whose lines are counted before, to say how many are left
_READ = 1 << 16  # bytes of standard input that are read at once, if there are so many


@dataclass(kw_only=True)
class Translate(OnTrained):
    """Translates lines with a trained model: line n of the output belongs to line n of the input, always.

    A line feed alone ends a line. An empty line stays empty. A file that is half done is continued by the same command.

    meshax translate --run runs/wmt-tiny --input news.en --output news.fr

    echo "It is half past three." | meshax translate --run runs/wmt-tiny
    """

    run_: Annotated[str, arg(name="run", metavar="DIR", help="The directory that meshax train wrote.")] = (
        "runs/wmt-tiny"
    )
    input: Annotated[
        str, arg(metavar="FILE", help="What to translate, also .gz, .sgm or in an archive; - is standard input.")
    ] = "-"
    output: Annotated[str, arg(metavar="FILE", help="Where to write; - is standard output.")] = "-"
    beam: Annotated[int, arg(metavar="B", help="How many beginnings of a translation live on; 1: the likeliest.")] = 4
    length_penalty: Annotated[float, arg(metavar="A", help="The exponent; 0: lengths do not count.")] = 0.6
    length_penalty_by: Annotated[str, arg(metavar="NAME", help="paper, ((5+n)/6)^A, or power, n^A, for n tokens.")] = (
        "paper"
    )
    nbest: Annotated[
        int, arg(metavar="N", help="How many translations on each line, the likeliest first, a tab between them.")
    ] = 1
    slots: Annotated[int, arg(metavar="N", help="How many lines to translate at once.")] = 32
    json: Annotated[
        bool, arg(help="Write a JSON object on each line: the source, translations, scores.", help_behavior_hint="")
    ] = False

    def run(self) -> None:
        """Restores and translates."""
        for name in ("beam", "nbest", "slots"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}.", fix="give a number, 1 or more.")
        if self.nbest > self.beam:
            raise UsageError(
                "a search gives at most as many translations as it has beams.",
                values=f"{self.beam} beams, the best {self.nbest}",
                fix="give a greater --beam.",
            )
        output = _Output(self.output, self._identity()) if self.output != "-" else None
        with (
            contextlib.closing(output) if output else contextlib.nullcontext(),
            self.restored_run("pairs", "name the run of a model that translates.") as (run, model, _),
        ):
            from ..decode.translating import Translator
            from ..train.pair_examples import stored_vocabularies
            from ..train.progress import counting

            with usage():
                translator = Translator(
                    model, run.mesh, run.layout, stored_vocabularies(run.directory), beams=self.beam,
                    length_penalty=self.length_penalty_by, alpha=self.length_penalty, slots=self.slots,
                    source_length=run.sizes["source_length"], length=run.sizes["length"],
                )  # fmt: skip
            replaced = 0
            total = None if self.input == "-" else self._count()
            console = run.console
            with counting(console, "translating", total, hidden=self.input == "-") as count:
                count(output.num_lines if output else 0)
                for window in self._windows(output.num_lines if output else 0):
                    texts = [line.content.decode(errors="replace") for line in window]
                    replaced += sum(not _is_utf8(line.content) for line in window)
                    lines = self._translated(translator, texts, count)
                    content = "".join(f"{line}\n" for line in lines).encode()
                    if output:
                        output.append(content, len(lines))
                    else:
                        sys.stdout.buffer.write(content)
                        sys.stdout.buffer.flush()
            for number, words in (
                (translator.num_cut, f"longer than {translator.source_length - 1} tokens, and cut there"),
                (replaced, "not UTF-8, and translated with U+FFFD for the wrong bytes"),
            ):
                if number:
                    what = f"{number:,} lines were {words}" if number > 1 else f"1 line was {words}"
                    console.print(what, highlight=False, markup=False, soft_wrap=True)
            if output:
                output.finish()

    def _translated(self, translator: "Translator", texts: list[str], count: Callable[[int], None]) -> list[str]:
        """Returns what is written for each text, on one line."""
        rows = translator.translate(texts, count)
        return [self._shown(text, row[: self.nbest]) for text, row in zip(texts, rows, strict=True)]

    def _shown(self, source: str, found: "list[Translation]") -> str:
        if self.json:
            translations = [{"text": one.text, "score": one.score} for one in found]
            return json.dumps({"source": source, "translations": translations}, ensure_ascii=False)
        texts = [one.text.replace("\n", " ") for one in found]
        return "\t".join(text.replace("\t", " ") for text in texts) if self.nbest > 1 else "".join(texts)

    def _windows(self, skipped: int) -> "Iterator[list[Line]]":
        """Yields lines that are translated together; of standard input, those that are there already."""
        from itertools import islice

        from ..data.lines import split

        if self.input == "-":
            yield from _arriving(split)
            return
        lines = islice(self._lines(), skipped, None)
        while window := list(islice(lines, _WINDOW * self.slots)):
            yield window

    def _lines(self) -> "Iterator[Line]":
        from ..data.archives import find
        from ..data.lines import lines

        with usage():
            places = find(self.input)
        if len(places) > 1:
            raise UsageError(f"{self.input!r} is several files.", fix="name one; each has an output of its own.")
        return lines(places[0])

    def _count(self) -> int | None:
        """Returns how many lines the input has, if that is soon known."""
        lines = self._lines()
        with contextlib.suppress(OSError):
            if os.path.getsize(self.input) > _COUNTED:
                return None
        return sum(1 for _ in lines)

    def _identity(self) -> dict[str, Any]:
        """Returns what an output that is half done has to have been made from to be continued.

        The step is its number: a run that goes on has another latest one by then.
        """
        if self.input == "-":
            return {}
        from ..data.archives import find
        from ..train.loop import run_config
        from ..train.starting import checkpoints_of

        with usage():
            size, time = find(self.input)[0].status()
        options = {
            name: getattr(self, name) for name in ("beam", "length_penalty", "length_penalty_by", "nbest", "json")
        }
        run_config(self.run_)  # raises if there is no run
        with checkpoints_of(self.run_) as checkpoints:
            step = checkpoints.describe(step_of(self.step)).step
        self.step = str(step)
        run = {"run": str(Path(self.run_).resolve()), "step": step, "average": self.average}
        return {"input": str(Path(self.input).resolve()), "bytes": size, "modified": time, **run, **options}


class _Output:
    """A file that grows by whole lines, and how far it is: `FILE.progress` says, until all is done.

    One command at a time writes it: it is locked while it is open.
    """

    def __init__(self, path: str, identity: dict[str, Any]):
        self.path, self.identity = Path(path), identity
        if not self.path.name or not self.path.absolute().parent.is_dir():
            raise UsageError(f"{path!r} cannot be written.", fix="name a file in a folder that exists.")
        if self.path.exists() and not self.path.is_file():
            raise UsageError(f"{path!r} is no file.", fix="name one; - is standard output.")
        self._progress = self.path.with_name(f"{self.path.name}.progress")
        self.num_lines = self.num_bytes = 0
        if self._progress.exists():
            self._continue()
        elif self.path.exists() and self.path.stat().st_size:
            raise UsageError(f"{path!r} exists.", fix="remove it, or choose another --output.")
        try:
            self._file = open(self.path, "ab")  # noqa: SIM115
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UsageError(
                f"another command writes {path!r}.", fix="wait for it, or choose another --output."
            ) from None
        except OSError as error:
            raise UsageError(
                f"{path!r} cannot be written.", values=error.strerror or str(error), fix="choose another --output."
            ) from error
        self._file.truncate(self.num_bytes)

    def _continue(self) -> None:
        try:
            there = json.loads(self._progress.read_text(encoding="utf-8"))
            lines, size = int(there["lines"]), int(there["bytes"])
            same = there["identity"]
        except (OSError, ValueError, KeyError, TypeError):
            lines, size, same = 0, 0, {}
        has_all = self.path.exists() and self.path.stat().st_size >= size
        changed = [name for name in {**same, **self.identity} if same.get(name) != self.identity.get(name)]
        if changed or not has_all or not self.identity:
            values = "; ".join(f"{name} was {same.get(name)!r}, is {self.identity.get(name)!r}" for name in changed)
            raise UsageError(
                f"{str(self.path)!r} is half done, and cannot be continued.",
                values=values or f"{self._progress}: {size:,} bytes, of which some are gone",
                rule="it goes on with the same input, run, step and search.",
                fix=f"give these as they were, or remove it and {self._progress}.",
            )
        self.num_lines, self.num_bytes = lines, size

    def append(self, content: bytes, num_lines: int) -> None:
        """Writes lines, and then how far it is."""
        from ..files import write_whole

        lines, size = self.num_lines + num_lines, self.num_bytes + len(content)
        try:
            self._file.write(content)
            self._file.flush()
            os.fsync(self._file.fileno())
            write_whole(self._progress, json.dumps({"identity": self.identity, "lines": lines, "bytes": size}).encode())
        except OSError as error:
            raise MeshaxError(
                f"line {self.num_lines + 1:,} and those after it cannot be written.",
                values=f"{self.path}: {error.strerror or error}",
                fix="make room or correct the folder; the same command continues.",
            ) from error
        self.num_lines, self.num_bytes = lines, size

    def finish(self) -> None:
        """Says that it is whole."""
        self._progress.unlink(missing_ok=True)

    def close(self) -> None:
        """Lets another command write it."""
        with contextlib.suppress(OSError):  # what could not be written is written again, when it is continued
            self._file.close()


def _arriving(split: Any) -> "Iterator[list[Line]]":
    """Yields the lines of standard input as they come, many at a time if they come fast."""
    rest = b""
    while chunk := os.read(sys.stdin.fileno(), _READ):
        whole, feed, rest = (rest + chunk).rpartition(b"\n")
        if feed:
            yield list(split(iter([(whole + feed, 0)])))
    if rest:
        yield list(split(iter([(rest, 0)])))


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
