"""Text of tokens as they come: the same as of all at once, whatever the vocabulary; and where a string cuts it."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

from meshax.data.vocabulary import Vocabulary
from meshax.decode import Written
from meshax.decode.texts import HALF, Spelling, cut_at

ELSEWHERE = Path(__file__).parents[1] / "golden" / "hugging_face"
WORDS = ["one ", "two", " three", " four"]


def with_byte_tokens():
    """As SentencePiece has it: letters, a sign for spaces, a token for each byte, no space before the first word."""
    names = ["<end>", *(f"<0x{byte:02X}>" for byte in range(256)), *"\u2581onetw,"]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return Vocabulary(f'{{"begin": 0, "end": 0, "tokenizer": {tokenizer.to_str()}}}')


VOCABULARIES = {
    "bytes": lambda: Vocabulary.train(["one two, three"] * 9, 300),
    "byte tokens": with_byte_tokens,
    "llama": lambda: Vocabulary.from_tokenizer(ELSEWHERE / "llama" / "tokenizer.json"),
}


@pytest.fixture(params=VOCABULARIES)
def vocabulary(request):
    return VOCABULARIES[request.param]()


def test_text_as_it_comes_is_that_of_all_tokens(vocabulary):
    """In parts that end with half a character now and then, after a prompt that does."""
    random = np.random.RandomState(0)
    pieces = [vocabulary.encode(text) for text in ("one", " one", " two", ",", "\u00e9", "\u4e16\u754c", "\U0001f600")]
    prompt = (*pieces[0], *pieces[4][:-1])
    tokens = [*pieces[4][-1:], *sum((pieces[i] for i in random.randint(0, len(pieces), 150)), [])]
    spelling, texts = Spelling(vocabulary.decode, prompt), []
    for first in range(0, len(tokens), 3):
        whole = vocabulary.decode(tokens[: first + 3], prompt)
        texts.append(spelling.add(tokens[first : first + 3]))
        # Halves may make halves of whole characters before them for a while: what was whole stays.
        assert texts[-1] == whole or (whole.endswith(HALF) and texts[-1].startswith(whole.rstrip(HALF)))
        assert texts[-1].startswith(spelling.settled)
    if vocabulary.decode(vocabulary.encode("\u00e9")) == "\u00e9":
        assert texts[0].startswith("\u00e9") and 9 < sum(text.endswith(HALF) for text in texts) < len(texts) - 9


def written_of(count):
    return Written([*range(count)], [-1.0 - i for i in range(count)], [[(i, -1.0)] for i in range(count)])


def spelled():
    return Spelling(lambda tokens, after: "".join(WORDS[token] for token in tokens))


def test_a_string_cuts_the_text():
    written = written_of(4)
    assert not cut_at(("five",), written, spelled(), 0) and written.text is None
    assert cut_at(("four", "o th"), written, spelled(), 0)
    assert written.text == "one tw" and written.tokens == [0, 1, 2] and written.log_probability == -6.0
    assert len(written.candidates) == 3


def test_a_string_that_ends_first_cuts_however_many_tokens_come_at_once():
    """Of "three" and "wo three four" the first is whole before the other, which begins before it."""
    texts = []
    for size in (1, 4):
        written, spelling = Written(), spelled()
        for start in range(0, 4, size):
            written.tokens += range(start, start + size)
            written.log_probabilities += [-1.0] * size
            if cut_at(("three", "wo three four"), written, spelling, start):
                break
        texts.append((written.text, written.tokens))
    assert texts == [("one two ", [0, 1, 2])] * 2
