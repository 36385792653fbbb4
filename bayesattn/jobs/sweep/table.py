"""Table of the results of a sweep."""

import io
from pathlib import Path

import pandas as pd

from bayesattn._util.files import replace_file
from bayesattn._util.plain import PlainDict
from bayesattn.jobs import runs
from bayesattn.jobs.sweep.plan import Sweep, flat


def results(sweep: Sweep, errors: dict[str, str | None] | None = None) -> pd.DataFrame:
    """Tidy table: a row for each quantity of each complete run, and one with state and error for each other run."""
    rows = []
    for planned in sweep.runs:
        about = {"run": planned.name, "model": Path(planned.settings["model"]).stem}
        about |= {
            key: getattr(planned.job, key) for key in ("sampler", "parameterisation", "chains", "warmup", "draws")
        }
        about |= {"seed": planned.job.seed} | flat(planned.varied)
        error = (errors or {}).get(planned.name)
        try:
            overview: PlainDict = runs.Run(planned.out).overview() if planned.out.exists() else {"state": "new"}
            about |= {
                key: overview[key] for key in ("state", "sampler", "width", "temperature", "seconds") if key in overview
            }
            error = error or overview.get("error")
            quantities = runs.Run(planned.out).summary() if overview["state"] == "complete" and not error else [{}]
            diagnostics = overview.get("diagnostics") or {}
            about["divergences"] = diagnostics.get("divergences")
        except (runs.RunError, OSError) as damage:
            about["state"], error, quantities = "failed", error or str(damage), [{}]
        if error:
            about["state"] = "failed"
        rows += [about | {"error_message": error} | quantity for quantity in quantities]
    return pd.DataFrame(rows)


def write_table(table: pd.DataFrame, folder: Path) -> None:
    """Write the table to results.csv and results.parquet."""
    replace_file(folder / "results.csv", table.to_csv(index=False).encode())
    content = io.BytesIO()
    table.to_parquet(content, index=False)
    replace_file(folder / "results.parquet", content.getvalue())
