"""The paper's language model in PyTorch, compiled: what ours is measured beside.

Plain gradient descent, fused: the least that an optimizer can cost. PyTorch chooses itself what its backward pass
keeps, as long as that is not more than a part of what it would like to keep: torch.compile's memory budget.
"""

import statistics
import time
from typing import Any

from ..errors import ArgumentError
from ..models.contract import parameter_count
from ..plan.cost.hardware import peak_of_device
from .step import Measurement, Step, needed_flops
from .turns import Say, in_silence

BUDGET = {"nothing": 0.0, "products": 0.8, "everything": 1.0}  # of the memory that PyTorch would like for activations


def measure_torch(step: Step, rounds: int, steps: int, say: Say = in_silence) -> Measurement:
    """Measures the program on the first GPU."""
    try:
        import torch
        import torch._functorch.config
    except ImportError:
        raise ArgumentError("PyTorch is not installed here.", fix="pip install torch, or leave it out.") from None
    if not torch.cuda.is_available():
        raise ArgumentError("PyTorch sees no GPU.", fix="leave it out.")
    config, (batch, length) = step.model(), step.sizes().values()
    tokens = torch.randint(2, config.vocab, (batch, length), device="cuda")
    torch.manual_seed(0)
    keep = step.keep or step.fields.get("keep", "")
    torch._functorch.config.activation_memory_budget = BUDGET.get(keep, 1.0)
    model = _model(torch, config, length)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    compiled: Any = torch.compile(model)

    def once() -> Any:
        loss = compiled(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    say("compiling")
    begin = time.perf_counter()
    first = float(once())
    compiling = time.perf_counter() - begin
    say(f"compiled in {compiling:.1f} s, running")
    once().item()

    def run() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            loss = once()
        loss.item()
        return (time.perf_counter() - begin) / steps

    timed = tuple(run() for _ in range(rounds))
    device = torch.cuda.get_device_name(0)
    return Measurement(
        "torch", parameter_count(config), batch * length, statistics.median(timed), timed, compiling, 0.0,
        int(torch.cuda.max_memory_allocated()), needed_flops(config, batch, length),
        peak_of_device(device, "bfloat16"), first, device, {}, keep if keep in BUDGET else "",
    )  # fmt: skip


def _model(torch: Any, config: Any, length: int) -> Any:
    nn, functional = torch.nn, torch.nn.functional
    width, heads, d_kv, d_ff = config.d_model, config.heads, config.d_kv, config.d_ff

    def weight(rows: int, cols: int, scale: float) -> Any:
        return nn.Parameter(scale * torch.randn(rows, cols, device="cuda"))

    def norm(x: Any, scale: Any) -> Any:
        return functional.rms_norm(x.float(), (width,), scale, 1e-6).bfloat16()

    class Layer(nn.Module):  # type: ignore
        def __init__(self) -> None:
            super().__init__()
            self.qkv = weight(3 * heads * d_kv, width, width**-0.5)
            self.out = weight(width, heads * d_kv, (heads * d_kv) ** -0.5)
            self.into = weight(d_ff, width, width**-0.5)
            self.back = weight(width, d_ff, d_ff**-0.5)
            self.norms = nn.ParameterList(nn.Parameter(torch.ones(width, device="cuda")) for _ in range(2))

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            h = functional.linear(norm(x, self.norms[0]), self.qkv.bfloat16())
            q, k, v = h.view(batch, length, 3, heads, d_kv).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            mixed = mixed.transpose(1, 2).reshape(batch, length, heads * d_kv)
            x = x + functional.linear(mixed, self.out.bfloat16())
            h = functional.relu(functional.linear(norm(x, self.norms[1]), self.into.bfloat16()))
            return x + functional.linear(h, self.back.bfloat16())

    class Model(nn.Module):  # type: ignore
        def __init__(self) -> None:
            super().__init__()
            self.embedding = weight(config.vocab, width, 1.0)
            self.logits = weight(config.vocab, width, width**-0.5)
            self.norm = nn.Parameter(torch.ones(width, device="cuda"))
            self.layers = nn.ModuleList(Layer() for _ in range(config.layers))
            frequencies = torch.exp(torch.arange(width // 2, device="cuda") * (-9.210340371976184 / (width // 2)))
            angles = torch.arange(length, device="cuda")[:, None] * frequencies
            self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], -1).bfloat16())

        def forward(self, tokens: Any) -> Any:
            x = self.embedding.bfloat16()[tokens] + self.positions
            for layer in self.layers:
                x = layer(x)
            logits = functional.linear(norm(x, self.norm), self.logits.bfloat16()).float()
            return functional.cross_entropy(logits.view(-1, config.vocab), tokens.reshape(-1))

    return Model()
