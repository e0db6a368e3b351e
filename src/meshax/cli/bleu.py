"""`meshax bleu`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from .options import Reporting, UsageError, usage


@dataclass(kw_only=True)
class Bleu(Reporting):
    """Says how near translations are to references: BLEU and chrF, as the command sacrebleu does.

    meshax bleu --translations news.fr --references reference.fr
    """

    translations: Annotated[
        str, arg(metavar="FILE", help="A translation on each line, plain text.", help_behavior_hint="")
    ] = ""
    references: Annotated[
        tuple[str, ...],
        arg(
            metavar="FILE ...", help="What is right, line by line; several files: several ways.", help_behavior_hint=""
        ),
    ] = ()
    paper: Annotated[
        bool,
        arg(help="Also BLEU as the paper counted: cut at every punctuation mark, not smoothed.", help_behavior_hint=""),
    ] = False

    def run(self) -> None:
        """Reads and compares."""
        if not self.translations or not self.references:
            missing = "references" if self.translations else "translations"
            raise UsageError(f"there are no {missing}.", fix=f"give --{missing} FILE.")
        from ..data.bleu import measures

        found = _texts(self.translations), [_texts(file) for file in self.references]
        with usage():
            scores = measures(*found, paper=self.paper)
        data = {one.name: {"value": one.value, "signature": one.signature} for one in scores}
        self.report({"measures": data, "lines": len(found[0])}, "\n".join(map(str, scores)), folded=False)


def _texts(path: str) -> list[str]:
    """Returns the lines of a file."""
    from ..data.archives import find
    from ..data.lines import lines

    with usage():
        places = find(path)
        if len(places) > 1:
            raise UsageError(f"{path!r} is several files.", fix="name one.")
        texts = [line.content for line in lines(places[0])]
    try:
        return [text.decode() for text in texts]
    except UnicodeDecodeError:
        raise UsageError(f"{path!r} is not UTF-8.", fix="convert it with iconv -t utf-8.") from None
