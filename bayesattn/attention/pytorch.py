"""Hidden states and attention from a run of a PyTorch transformer."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from bayesattn._util.checks import readable, shown
from bayesattn._util.errors import BayesattnError

EAGER = (
    "load it with attn_implementation='eager', or call model.set_attn_implementation('eager'): other implementations do not"
    " return their attention"
)
Run = Callable[[Mapping[str, Any]], tuple[list[np.ndarray], list[np.ndarray]]]


@contextmanager
def evaluated(model: Any) -> Iterator[Run]:
    """Context with a function of a batch: hidden states, before the first and after each layer, and attention of all layers.

    Inside the context the model is in evaluation mode; afterwards each of its modules returns to its previous mode.
    Raises ValueError for another kind of model, or one that returns no attention.
    """
    import torch  # pyright: ignore[reportMissingImports]

    if not isinstance(model, torch.nn.Module):
        raise BayesattnError(f"model must be a transformer of Hugging Face, got {shown(model)}")
    arguments = inspect.signature(model.forward).parameters
    depth = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    blocks = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList) and len(each) == depth]
    last: list[Any] = []

    def run(batch: Mapping[str, Any]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        device = next(model.parameters()).device
        moved = {
            name: value.to(device) if hasattr(value, "to") else torch.as_tensor(value, device=device)
            for name, value in _with_positions(batch, arguments).items()
        }
        with torch.no_grad():
            found = model(**moved, output_attentions=True, output_hidden_states=True)
        states, attention = getattr(found, "hidden_states", None), getattr(found, "attentions", None)
        if states is None:
            raise BayesattnError(
                f"model must be an encoder or a causal model, whose output has hidden_states, got {type(model).__name__}"
            )
        if not attention or any(each is None for each in attention):
            raise BayesattnError(f"model must return its attention, got none: {EAGER}")
        states = [_array(each) for each in states]
        if last:  # The last of the states may have passed a final norm, which is not part of the layer.
            states[-1] = _array(last.pop())
        return states, [_array(each) for each in attention]

    def keep(_: Any, __: Any, output: Any) -> None:
        last[:] = [output[0] if isinstance(output, tuple) else output]

    modes = {each: each.training for each in model.modules()}
    hook = blocks[0][-1].register_forward_hook(keep) if len(blocks) == 1 else None
    model.eval()
    try:
        yield run
    finally:
        if hook is not None:
            hook.remove()
        for each, training in modes.items():
            each.training = training


def _with_positions(batch: Mapping[str, Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The batch with positions that begin at the first token, if sequences are padded on the left."""
    mask = batch.get("attention_mask")
    if mask is None or "position_ids" not in arguments or "position_ids" in batch:
        return batch
    real = _array(mask) > 0
    if real[:, 0].all():
        return batch
    return {**batch, "position_ids": np.maximum(np.cumsum(real, axis=1) - 1, 0)}


def _array(tensor: Any) -> np.ndarray:
    return np.asarray(readable(tensor))
