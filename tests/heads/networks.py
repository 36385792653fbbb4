"""Networks in which the losses of heads are computed by two routes."""

from collections.abc import Callable

import numpy as np
import xarray as xr

import bayesattn as ba


def drawn(order_parameters: np.ndarray) -> xr.DataTree:
    """Chains of given U."""
    axes = ("chain", "draw", "path", "other_path")
    return xr.DataTree.from_dict({"posterior": xr.Dataset({"order_parameter": (axes, order_parameters)})})


def two_layers(width: int = 5, skips: tuple[float, ...] = (), outputs: int = 1, temperature: float = 0.3) -> ba.Model:
    """Two heads in each of two layers; the labels follow the first path, and weakly the last."""
    rng = np.random.default_rng(1)
    arch = ba.Architecture((2, 2), (width,) * 3, (1.0,) * 4, skips, outputs)
    inputs = rng.normal(size=(15, arch.paths, 3))
    signal = inputs[:, 0, :outputs] + 0.3 * inputs[:, -1, 1 : 1 + outputs]
    labels = np.sign(signal + 0.2 * rng.normal(size=signal.shape))
    return ba.Model(
        path_inputs=inputs,
        labels=labels[:, 0] if outputs == 1 else labels,
        architecture=arch,
        temperature=temperature,
    )


NETWORKS: dict[str, Callable[[], ba.Model]] = {
    "two layers": two_layers,
    "skips": lambda: two_layers(4, (0.8, 0.5)),
    "width 1, skips, two outputs": lambda: two_layers(1, (0.8, 0.5), 2),
    "splice": lambda: ba.load_model("splice", width=6, task={"examples": 40}).replace(temperature=0.3),
}
