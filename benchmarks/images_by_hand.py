"""The U-Net and the residual network of `meshax`, written by hand in JAX: what ours are measured beside.

For one device, as someone who knows JAX would write them: parameters in dicts and lists, channels last, optax. The
parameters are made from a model of ours (`of_unet`, `of_resnet`), so that both compute the same.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

LEAK, EPSILON, MOMENTUM = 0.1, 1e-5, 0.9


def _letters(x: Any) -> tuple[str, str, str]:
    places = "DHW"[5 - x.ndim :]
    return f"N{places}C", f"{places}IO", f"N{places}C"


def convolve(x: Any, kernel: Any, stride: int = 1, padding: Any = "SAME") -> Any:
    """A convolution, the channels last."""
    strides = (stride,) * (x.ndim - 2)
    return lax.conv_general_dilated(x, kernel.astype(x.dtype), strides, padding, dimension_numbers=_letters(x))


def enlarge(x: Any, w: Any) -> Any:
    """Twice as many places along each side."""
    places = tuple(range(x.ndim - 2))
    kernel = jnp.flip(w["kernel"].astype(x.dtype), places)
    out = lax.conv_transpose(x, kernel, (2,) * len(places), "VALID", dimension_numbers=_letters(x))
    return out + w["bias"].astype(x.dtype)


def normed(x: Any, w: Any) -> tuple[Any, Any]:
    """The batch norm of training, and the mean and the variance that it saw."""
    wide, over = x.astype(jnp.float32), tuple(range(x.ndim - 1))
    mean = jnp.mean(wide, over)
    centred = wide - mean
    variance = jnp.mean(centred * centred, over)
    out = centred * (lax.rsqrt(variance + EPSILON) * w["scale"]) + w["shift"]
    return out.astype(x.dtype), lax.stop_gradient((mean, variance))


def conv_and_norm(x: Any, w: Any, stride: int = 1, padding: Any = "SAME") -> tuple[Any, Any]:
    """A convolution without a bias, and its norm."""
    return normed(convolve(x, w["kernel"], stride, padding), w)


def pool(x: Any, size: int, margin: int = 0) -> Any:
    """The greatest of each window, every second one."""
    rank = x.ndim - 2
    margins = ((0, 0), *((margin, margin),) * rank, (0, 0))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, *(size,) * rank, 1), (1, *(2,) * rank, 1), margins)


def unet_loss(config: Any) -> Callable[..., Any]:
    """The loss of the U-Net of a configuration, and what its norms saw."""
    class_weights = jnp.array([float(word) for word in config.class_weights.split()])

    def level(layers: Any, x: Any) -> Any:
        seen = []
        for w in layers:
            x, observed = conv_and_norm(x, w)
            x = jnp.maximum(x, x * LEAK)
            seen.append(observed)
        return x, seen

    if config.keep == "nothing":
        level = jax.checkpoint(level)

    def loss(w: Any, image: Any, labels: Any) -> Any:
        x, beside, seen = image.astype(config.dtype), [], []
        for number, layers in enumerate(w["down"]):
            x, observed = level(layers, pool(x, 2) if number else x)
            beside.append(x)
            seen.append(observed)
        beside.pop()
        for layers, larger in zip(w["up"], w["enlarge"], strict=True):
            x, observed = level(layers, jnp.concatenate([beside.pop(), enlarge(x, larger)], -1))
            seen.append(observed)
        logits = jnp.einsum("...f,fc->...c", x, w["logits"]["kernel"].astype(x.dtype))
        logits = (logits + w["logits"]["bias"].astype(x.dtype)).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels) * class_weights[labels]
        chances, truth = jax.nn.softmax(logits), jax.nn.one_hot(labels, config.classes)
        places = tuple(range(1, labels.ndim))
        overlaps = []
        for over in (places, (0, *places)):
            both, each = jnp.sum(chances * truth, over), jnp.sum(chances + truth, over)
            overlaps.append(jnp.mean((2 * both + 0.1) / (each + 0.1)))
        apart = 1 - (overlaps[0] + overlaps[1]) / 2
        return config.dice_part * apart + (1 - config.dice_part) * jnp.mean(losses), seen

    return loss


def resnet_loss(config: Any) -> Callable[..., Any]:
    """The loss of the residual network of a configuration, and what its norms saw."""

    def conv(x: Any, w: Any, stride: int) -> Any:
        margin = w["kernel"].shape[0] // 2
        return conv_and_norm(x, w, stride, [(margin, margin)] * 2)

    def loss(w: Any, image: Any, labels: Any) -> Any:
        x, observed = conv(image.astype(config.dtype), w["stem"], 2)
        x, seen = pool(jax.nn.relu(x), 3, 1), [observed]
        for block, stride in zip(w["blocks"], strides(config), strict=True):
            out, own = x, []
            for number, layer in enumerate(block["convs"]):
                is_strided = number == (1 if config.bottleneck else 0)
                out, observed = conv(jax.nn.relu(out) if number else out, layer, stride if is_strided else 1)
                own.append(observed)
            around = []
            for layer in block["around"]:
                x, observed = conv(x, layer, stride)
                around.append(observed)
            x = jax.nn.relu(out + x)
            seen.append((own, around))
        x = jnp.mean(x, (1, 2))
        logits = x @ w["logits"]["kernel"].astype(x.dtype) + w["logits"]["bias"].astype(x.dtype)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels)), seen

    return loss


def strides(config: Any) -> list[int]:
    """The stride of each block: 2 for the first one of a stage, but for that of the first stage."""
    return [2 if stage and not number else 1 for stage, count in enumerate(config.blocks) for number in range(count)]


def train_step(loss: Callable[..., Any], optimizer: Any) -> Callable[..., Any]:
    """A step of training, to be jitted with its first three arguments donated."""

    def step(w: Any, moments: Any, statistics: Any, image: Any, labels: Any) -> Any:
        (value, seen), grads = jax.value_and_grad(loss, has_aux=True)(w, image, labels)
        updates, moments = optimizer.update(grads, moments, w)
        statistics = jax.tree.map(lambda old, new: MOMENTUM * old + (1 - MOMENTUM) * new, statistics, seen)
        return optax.apply_updates(w, updates), moments, statistics, value

    return step


def _layer(layer: Any) -> dict[str, Any]:
    return {"kernel": layer.conv.weight.array, "scale": layer.norm.scale.array, "shift": layer.norm.shift.array}


def _linear(layer: Any) -> dict[str, Any]:
    return {"kernel": layer.weight.array, "bias": layer.bias.array}


def of_unet(model: Any) -> dict[str, Any]:
    """The parameters of a U-Net of ours, as this program has them."""
    down, up = ([[_layer(layer) for layer in level] for level in levels] for levels in (model.down, model.up))
    return {"down": down, "up": up, "enlarge": [_linear(one) for one in model.enlarge], "logits": _linear(model.logits)}


def of_resnet(model: Any) -> dict[str, Any]:
    """The parameters of a residual network of ours, as this program has them."""
    blocks = [
        {"convs": [_layer(one) for one in block.convs], "around": [_layer(one) for one in block.around]}
        for block in model.blocks
    ]
    return {"stem": _layer(model.stem), "blocks": blocks, "logits": _linear(model.logits)}
