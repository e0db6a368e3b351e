"""`meshax import`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from .options import Reporting


@dataclass(kw_only=True)
class ImportWeights(Reporting):
    """Makes a run of the weights in a Hugging Face folder: Llama, Mistral, Qwen2, Qwen3 or GPT-2.

    The run is evaluated, generates and is trained on like any other, on any mesh under any layout. No accelerator is
    used, and no more memory than for one tensor.

    meshax import --from models/llama --out runs/llama
    """

    from_: Annotated[
        str, arg(name="from", metavar="DIR", help="The folder: config.json, safetensors files, tokenizer.json.")
    ]
    out: Annotated[str, arg(metavar="DIR", help="The directory of the run.")]
    tokenizer: Annotated[
        str, arg(metavar="FILE", help="Another tokenizer.json.", help_behavior_hint="(default: the folder's)")
    ] = ""
    batch: Annotated[int, arg(metavar="N", help="Examples in a step or an evaluation of the run.")] = 8
    length: Annotated[
        int,
        arg(
            metavar="N", help="Tokens in an example.", help_behavior_hint="(default: the model's longest, 1024 at most)"
        ),
    ] = 0

    def run(self) -> None:
        """Imports."""
        import jax

        jax.config.update("jax_platforms", "cpu")
        from ..models.contract import parameter_count
        from ..models.presets import show_parameters
        from ..train.config import TrainConfig
        from ..train.foreign import import_folder

        model = import_folder(
            self.from_, TrainConfig(out=self.out, batch=self.batch, length=self.length), self.tokenizer
        )
        count = parameter_count(model)
        text = f"{show_parameters(count)} parameters in {self.out}\nnext: meshax generate --run {self.out}"
        self.report({"run": self.out, "parameters": count}, text)
