"""From your text to batches of tokens.

text, held_out = Text.find("books/*.txt").hold_out()
vocabulary = Vocabulary.train(text)
tokens = tokenize(text, vocabulary, "out/tokens")
batches = Batches(tokens, length=1024, batch=64)

Of a text and its translation: `Pairs`, each side tokenized, and `PairBatches`.
"""

from .bigram import Bigram, Score
from .limits import Limit
from .mixture import Mixture
from .packing import Windows
from .pair_packing import PackedPairs
from .pairs import Pairs
from .stream import Batches, PairBatches, evaluation, in_order
from .text import Corpus, Text, documents, standard_library
from .tokenizing import tokenize
from .tokens import TokenFile, TokenFiles
from .vocabulary import END, PAD, Vocabulary

__all__ = [
    "END", "PAD", "Batches", "Bigram", "Corpus", "Limit", "Mixture", "PackedPairs", "PairBatches", "Pairs", "Score",
    "Text", "TokenFile", "TokenFiles", "Vocabulary", "Windows", "documents", "evaluation", "in_order",
    "standard_library", "tokenize",
]  # fmt: skip
