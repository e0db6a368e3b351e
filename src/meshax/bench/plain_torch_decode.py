"""The same writing of text in PyTorch: a static cache, and a step compiled into one graph of CUDA's."""

import math
from typing import Any

from .plain_jax_decode import PlainDecoder


def make_step(torch: Any, sizes: PlainDecoder, slots: int, places: int, device: str) -> Any:
    """Makes a module from a token of each text, [slots], and a position, [1], to the likeliest next tokens."""
    nn, functional = torch.nn, torch.nn.functional
    dtype = getattr(torch, sizes.dtype)
    heads, groups, d_kv, d_ff = sizes.heads, sizes.kv_heads, sizes.d_kv, sizes.d_ff

    def weight(rows: int, cols: int) -> Any:
        random = torch.randn(rows, cols, device=device, dtype=dtype)
        return nn.Parameter(random.mul_(cols**-0.5), requires_grad=False)

    def norm(x: Any, scale: Any) -> Any:
        return functional.rms_norm(x.float(), (sizes.d_model,), scale, 1e-6).to(dtype)

    def scale() -> Any:
        return nn.Parameter(torch.ones(sizes.d_model, device=device), requires_grad=False)

    class Layer(nn.Module):  # type: ignore
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ParameterList(scale() for _ in range(2))
            self.qkv = weight((heads + 2 * groups) * d_kv, sizes.d_model)
            self.out = weight(sizes.d_model, heads * d_kv)
            self.into = weight(d_ff * (2 if sizes.gated else 1), sizes.d_model)
            self.back = weight(sizes.d_model, d_ff)
            for name in ("keys", "values"):
                self.register_buffer(name, torch.zeros(slots, groups, places, d_kv, device=device, dtype=dtype))

        def forward(self, x: Any, at: Any, seen: Any) -> Any:
            qkv = functional.linear(norm(x, self.norms[0]), self.qkv)
            q, k, v = qkv.view(slots, -1, 1, d_kv).split([heads, groups, groups], 1)
            if sizes.positions == "rotary":
                q, k = _rotated(torch, q, at), _rotated(torch, k, at)
            self.keys.index_copy_(2, at, k)
            self.values.index_copy_(2, at, v)
            mixed = functional.scaled_dot_product_attention(
                q, self.keys, self.values, attn_mask=seen, enable_gqa=groups != heads
            )
            x = x + functional.linear(mixed.reshape(slots, heads * d_kv), self.out)
            inner = functional.linear(norm(x, self.norms[1]), self.into)
            first, *gate = inner.chunk(2, -1) if sizes.gated else [inner]
            inner = math.prod(gate, start=getattr(functional, sizes.activation)(first))
            return x + functional.linear(inner, self.back)

    class Step(nn.Module):  # type: ignore
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.logits = weight(sizes.vocab, sizes.d_model), weight(sizes.vocab, sizes.d_model)
            self.norm = scale()
            self.layers = nn.ModuleList(Layer() for _ in range(sizes.layers))

        def forward(self, token: Any, at: Any) -> Any:
            x = self.embedding[token]
            if sizes.positions == "sinusoidal":
                x = x + torch.cat(_turned(torch, at, sizes.d_model // 2)).to(dtype)
            seen = (torch.arange(places, device=device) <= at)[None, None, None]
            for layer in self.layers:
                x = layer(x, at, seen)
            return functional.linear(norm(x, self.norm), self.logits).argmax(-1)

    return Step()


def _turned(torch: Any, at: Any, pairs: int) -> Any:
    frequencies = torch.exp(torch.arange(pairs, device=at.device) * (-math.log(10_000.0) / pairs))
    return torch.sin(at * frequencies), torch.cos(at * frequencies)


def _rotated(torch: Any, x: Any, at: Any) -> Any:
    first, second = x.chunk(2, -1)
    sine, cosine = (part.to(x.dtype) for part in _turned(torch, at, first.shape[-1]))
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
