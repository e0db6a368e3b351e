"""What a model is to whoever trains, plans or decodes it: nobody there knows one by name.

A model kind is a folder of `models/`. It holds a configuration, which makes models; the model, a pytree of tensors that
knows its loss; and presets, configurations with names. `docs/add_a_model.md` adds one.

A batch is a dict of tensors, each with the dim `batch`, which is cut into microbatches. One of them is `weights`: how
much each prediction counts (a token, a voxel; nothing where there is padding). What else is in a batch is the model's
own affair: `batch` gives the shapes, and `batch_kind` says which examples a run has to read for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from ..dim import Dims, sizes
from ..tensors import Tensor, is_tensor


class Model(Protocol):
    """A pytree of tensors; parameters have the role "param"."""

    def loss(self, batch: dict[str, Tensor], key: Any = None) -> tuple[Tensor, Tensor]:
        """Returns the summed loss of a batch, and the sum of its weights.

        Args:
            batch: tensors as the configuration describes them.
            key: in training, for all that is drawn at random; without one nothing is, and the loss is the plain one.
        """

    def measure(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns what an evaluation adds up, by name: the summed `loss`, and what the metrics need beside it."""


class ObservingModel(Model, Protocol):
    """A model that keeps statistics of what it has seen beside its parameters: those of batch norms."""

    def loss_and_observed(self, batch: dict[str, Tensor], key: Any = None) -> tuple[Tensor, Tensor, Any]:
        """Returns what `loss` returns, and a tree of tensors that was observed on the way."""

    def updated(self, observed: Any) -> "ObservingModel":
        """Returns the model with what was observed taken into its statistics; microbatches have a dim of their own."""


class LanguageModel(Model, Protocol):
    """A model that predicts the next token: what text is written with."""

    def __call__(self, tokens: Tensor) -> Tensor:
        """Returns the logits of the next token at every place, [batch, positions, vocab], of [batch, length]."""


class CachingModel(LanguageModel, Protocol):
    """A language model that keeps what it has computed of the tokens before: text is written one token at a time.

    A slot is a place for a text, each at a position of its own. `slots` are the dims of the slots: `batch`, and for
    beams one more. What is kept is the model's own affair: a tree of tensors that all have the dims of the slots.
    """

    def narrowed(self) -> Any:
        """Returns the model as it is read fastest and says the same: stored as narrow as it is computed with."""

    def empty_cache(self, slots: Dims, places: int, page: int) -> Any:
        """Makes room for texts of so many tokens at most, in pages of so many."""

    def prefill(self, tokens: Tensor, lengths: Tensor, cache: Any) -> Any:
        """Returns the cache of the beginnings of texts: [slots.., length], of which so many tokens each count."""

    def step(self, tokens: Tensor, at: Tensor, cache: Any, num_pages: int) -> tuple[Tensor, Any]:
        """Returns the logits of the next token of each slot, [slots.., vocab], and the cache with the token added.

        Args:
            tokens: the token of each slot, [slots..].
            at: where it stands in its text, [slots..].
            cache: what is kept of the tokens before.
            num_pages: how many pages may be read: no text reaches further.
        """


class SourceModel(CachingModel, Protocol):
    """A model that writes a text from another, its source: what it reads of the source it keeps beside the text.

    What is kept of a source need not have the dims of the beams: all beams of a text have one source.
    """

    reads_sources: ClassVar[bool]  # true

    def empty_cache(self, slots: Dims, places: int, page: int, source_places: int = 0) -> Any:
        """Makes room for texts, and for sources of so many tokens at most."""

    def prefill(
        self, tokens: Tensor, lengths: Tensor, cache: Any, inputs: Any = None, input_lengths: Any = None
    ) -> Any:
        """Returns the cache of sources, [batch, source_length], and of the beginnings of the texts to write."""


class ModelConfig(Protocol):
    """A frozen dataclass of numbers, words and switches: all that a model is made from."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    glossary: ClassVar[Mapping[str, str]]  # every dim that a layout may name, and what it counts: `Dim.declare`
    batch_kind: ClassVar[str]  # which examples a batch holds
    may_change: ClassVar[tuple[str, ...]]  # fields that a run may go on with other values of: no parameter needs them

    def make(self, key: Any) -> Model:
        """Makes a model, the same under every layout."""

    def sizes(self) -> dict[str, int]:
        """Returns the sizes of the dims of the parameters, by name."""

    def batch(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Returns the shapes of the tensors that a batch has at least, for the sizes of its dims by name."""

    def metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Returns figures to show beside the loss, the most telling first.

        Args:
            means: what `Model.measure` has added up, divided by the sum of the weights; while training, the loss alone.
        """


@dataclass(frozen=True)
class Recipe:
    """How a model is trained where nobody says otherwise; warm-up and cool-down keep their share of other steps."""

    optimizer: str = "adamw"
    schedule: str = "cosine"
    steps: int = 600
    warmup: int = 60
    cooldown: int = 60  # of the schedule "paper": the last steps, in which the rate falls to 0
    clip: float = 1.0  # the greatest norm of the gradients; 0: any
    count_padding: bool = False  # whether a loss is divided by all places of a batch, padding too


@dataclass(frozen=True)
class Preset:
    """A model by name, and how the paper (or we) would train it."""

    name: str
    family: str
    model: ModelConfig
    batch: Mapping[str, int]  # the sizes of the dims of a batch
    rate: float  # the highest learning rate of AdamW
    about: str
    recipe: Recipe = Recipe()
    mesh: str = ""  # the processors that it was trained on, where it was
    layout: str = "data+model"


def shape_of(dims: Dims, dtype: Any = jnp.int32) -> Tensor:
    """Returns the shape of a tensor, as one that holds nothing."""
    return Tensor(jax.ShapeDtypeStruct(sizes(dims), dtype), dims)


def parameter_count(config: ModelConfig) -> int:
    """Returns the number of parameters, without making any; running statistics are none."""
    leaves = jax.tree.leaves(jax.eval_shape(config.make, jax.random.key(0)), is_leaf=is_tensor)
    return sum(leaf.size for leaf in leaves if leaf.role == "param")
