"""A small translation that needs no download: English sentences about numbers, dates and times, and their French.

The sentences are made by rules. So there are as many as one likes, each has exactly one right translation, and still it
is translation: words change their order, adjectives and numerals agree with nouns, and both languages are irregular.

training, held_out = sentence_pairs(num_train=20_000, num_held_out=500)
"""

from .sentences import sentence_pairs

__all__ = ["sentence_pairs"]
