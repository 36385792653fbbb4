"""Hidden states and attention from a run of a PyTorch transformer."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from bayesattn._util.checks import shown
from bayesattn.errors import BayesattnError

EAGER = (
    "load it with attn_implementation='eager', or call model.set_attn_implementation('eager'): other implementations do not"
    " return their attention"
)
LAYER_TYPES = ("layer_types", "layers_block_type")
"""Names of the kinds of layers in configurations of Hugging Face."""
ATTENTION_TYPES = {"attention", "full_attention", "sliding_attention", "chunked_attention", "hybrid"}
"""Kinds of layers whose attention is returned; "hybrid" is a recurrent layer with attention."""


class Layers(NamedTuple):
    """What a transformer returns for a batch, as tensors.

    Args:
        states: hidden states before the first layer and after each layer, each of shape (P, T, N_0).
        attention: attention of each layer that has attention, by number, of shape (P, H_l, T, T).
        ends_with_layer: whether the last state is known to be the output of the last layer, before any final norm.
    """

    states: Sequence[Any]
    attention: dict[int, Any]
    ends_with_layer: bool


Run = Callable[[Mapping[str, Any]], Layers]


@contextmanager
def evaluated(model: Any) -> Iterator[Run]:
    """Context with a function of a batch that returns hidden states and attention.

    Inside the context the model is in evaluation mode; afterwards each of its modules returns to its previous mode.
    Raises ValueError for another kind of model, or one that returns no attention.
    """
    import torch  # pyright: ignore[reportMissingImports]

    if not isinstance(model, torch.nn.Module):
        raise BayesattnError(f"model must be a transformer of Hugging Face, got {shown(model)}")
    model = getattr(model, "_orig_mod", model)  # torch.compile would compile again for each length.
    name, configs, part = type(model).__name__, _configurations(model), _part(model)
    arguments = inspect.signature(model.forward).parameters
    if "output_attentions" not in arguments and not any(each.kind == each.VAR_KEYWORD for each in arguments.values()):
        raise BayesattnError(f"model must have attention and return it, got {name}, which takes no output_attentions")
    passed: list[tuple[Any, Any]] = []

    def keep(_: Any, given: tuple, named: dict, output: Any) -> None:
        before = next((each for each in (*given, *named.values()) if isinstance(each, torch.Tensor)), None)
        outputs = output if isinstance(output, tuple | list) else [output]
        after = next((each for each in outputs if getattr(each, "shape", None) == getattr(before, "shape", ())), None)
        if after is not None and after.ndim == 3:
            passed.append((before, after))

    def run(batch: Mapping[str, Any]) -> Layers:
        device = next(model.parameters()).device
        moved = {each: torch.as_tensor(value, device=device) for each, value in batch.items()}
        try:
            with torch.no_grad():
                found = model(**moved, output_attentions=True, output_hidden_states=True, return_dict=True)
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0]
            raise BayesattnError(
                f"model must read the batch and return its attention, got {name}, which stops with"
                f" {type(error).__name__}: {first_line}{part}"
            ) from error
        states, attention = getattr(found, "hidden_states", None), getattr(found, "attentions", None)
        if not states:
            raise BayesattnError(
                f"model must be an encoder or a causal model, whose output has hidden_states, got {name}{part}"
            )
        if not attention or all(each is None for each in attention):
            eager = any(getattr(each, "_attn_implementation", None) == "eager" for each in configs)
            advice = f"{name} has no attention, or does not return it" if eager else EAGER
            raise BayesattnError(f"model must return its attention, got none: {advice}")
        if last := _last(passed, states):
            states = (*states[:-1], last[0])
        passed.clear()
        return Layers(states, _by_layer(attention, len(states) - 1, configs), bool(last))

    modes = {each: each.training for each in model.modules()}
    blocks = [each for parent in model.modules() if isinstance(parent, torch.nn.ModuleList) for each in parent]
    hooks = [each.register_forward_hook(keep, with_kwargs=True) for each in dict.fromkeys(blocks)]
    model.eval()
    try:
        yield run
    finally:
        for hook in hooks:
            hook.remove()
        for each, training in modes.items():
            each.training = training


def pad_token(model: Any) -> int | None:
    """Number of the padding token by the model's configuration, if it has one."""
    numbers = [getattr(config, "pad_token_id", None) for config in _configurations(model)]
    return next((number for number in numbers if isinstance(number, int)), None)


def _configurations(model: Any) -> list[Any]:
    """Configurations of a model and of the models inside it."""
    return [each.config for each in model.modules() if hasattr(each, "config")]


def _part(model: Any) -> str:
    """End of the sentence about a model of an encoder and a decoder."""
    both = any(getattr(each, "is_encoder_decoder", False) for each in _configurations(model))
    decodes = any(name.rpartition(".")[2] == "decoder" for name, _ in model.named_modules())
    return ": give its encoder, model.get_encoder()" if both and decodes else ""


def _last(passed: list[tuple[Any, Any]], states: Sequence[Any]) -> list[Any]:
    """The state after the last layer, before any final norm, as a list of one; or none if it is not known.

    The block that took the last state but one made it, if the block before made what the last one took.
    """
    after = [_after(passed, state) for state in states[-3:-1]]
    known = all(each is not None for each in after) and all(map(_equal, after[:-1], states[-2:-1]))
    return after[-1:] if known else []


def _after(passed: list[tuple[Any, Any]], state: Any) -> Any:
    """Output of the outermost block that took a state, with the axes of the state; XLNet's blocks put tokens first."""
    for before, after in reversed(passed):
        if _equal(before, state):
            return after
        if _equal(before.transpose(0, 1), state):
            return after.transpose(0, 1)
    return None


def _equal(one: Any, other: Any) -> bool:
    return one.shape == other.shape and bool((one == other.to(one.device)).all())


def _by_layer(attention: Sequence[Any], layers: int, configs: Sequence[Any]) -> dict[int, Any]:
    """Attention of each layer that has attention; raises ValueError if it is not known which layers have it."""
    found = [each for each in attention if each is not None]
    for each in found:
        if getattr(each, "ndim", None) != 4:
            size = f"shape {tuple(each.shape)}" if hasattr(each, "shape") else type(each).__name__
            raise BayesattnError(f"attention of a layer must have shape (sequences, heads, tokens, tokens), got {size}")
    if len(attention) == layers:
        return {layer: each for layer, each in enumerate(attention) if each is not None}
    for types in (getattr(config, name, None) for config in configs for name in LAYER_TYPES):
        own = [layer for layer, kind in enumerate(types or ()) if kind in ATTENTION_TYPES]
        if len(types or ()) == layers and len(own) == len(found):
            return dict(zip(own, found, strict=True))
    raise BayesattnError(
        f"model must return attention of each of its {layers} layers, or say by layer_types of its configuration which"
        f" have it, got attention of {len(found)}"
    )
