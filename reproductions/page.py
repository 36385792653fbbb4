"""The page of the documentation: outcomes of all rows in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from bayesattn._util.text import cell, with_error
from reproductions.claims import LEVEL
from reproductions.registry import PAPERS, ROWS, Row
from reproductions.results import (
    MISSING,
    NOT_REPRODUCED,
    OPEN,
    QUALIFIED,
    VERDICTS,
    Outcome,
    Results,
    outcomes,
)

MOST_CLAIMS = 12
"""Largest number of comparisons of a row on the page; the results have all."""
INTRODUCTION = """# Both papers, row by row

Every figure, claim and equation of the two papers that this package is about: what it says, the law it is compared
with, what came out with its error, and the verdict. Made from the output of

```
python -m reproductions{mode}
```

| verdict | meaning |
| --- | --- |
| reproduced | every comparison holds, and would have found the wrong law that is planted beside it |
| reproduced with a qualification | the same, where a literal reading fails, or within limits that are named |
| not reproduced | a comparison fails |
| cannot tell | no comparison fails, but one would not have found its wrong law either |

A comparison fails where its p-value is below {level:g}, so that all of them together fail by chance with a probability of
about 1 %. Wrong laws are rivals of the right one where there are any: the GP limit, the saddle point alone, another
exponent. Where there are none, they are off by a share that is stated, and of identities by more than rounding, which every
identity that holds would find.
"""


def reason(outcome: Outcome) -> str:
    """Explanation of the verdict; empty where it needs none."""
    reasons = {
        QUALIFIED: outcome.row.qualification,
        NOT_REPRODUCED: outcome.row.why,
        OPEN: outcome.row.why,
        MISSING: f"needs {', '.join(outcome.missing)}",
    }
    return reasons.get(outcome.verdict, "")


def numbers(claim: dict[str, Any]) -> tuple[str, str, str]:
    """Predicted, measured and planted value of a comparison, with their errors."""
    relation = "" if claim["relation"] == "=" else f"{claim['relation']} "
    predicted, measured = (_number(claim[name], claim[f"{name}_error"]) for name in ("predicted", "measured"))
    if claim["allowance"]:
        predicted += f" (left out: {claim['allowance']:.2g})"
    return relation + predicted, measured, "" if claim["planted"] is None else f"{claim['wrong']}: {_planted(claim)}"


def _planted(claim: dict[str, Any]) -> str:
    """The planted value, or its difference from the prediction where four digits show none."""
    value, predicted = (cell(claim[name], ".4g") for name in ("planted", "predicted"))
    same = value == predicted and claim["planted"] != claim["predicted"]
    return f"{claim['planted'] - claim['predicted']:+.1g}" if same else value


def _number(value: float | None, error: float | None) -> str:
    return with_error(value, error) if error else cell(value, ".4g")


def counted(found: Sequence[Outcome]) -> str:
    """Number of rows with each verdict."""
    counts = ((sum(outcome.verdict == verdict for outcome in found), verdict) for verdict in VERDICTS)
    return ", ".join(f"{count} {verdict}" for count, verdict in counts if count)


def markdown(results: Results, figures: Mapping[str, str] | None = None, rows: Sequence[Row] = ROWS) -> str:
    """A table of verdicts for each paper, each row with its comparisons, the experiments, and figures.

    Args:
        results: by the name of the experiment.
        figures: files as the page names them, by the name of the experiment.
        rows: of the registry.
    """
    found = outcomes(results, rows)
    mode = " --fast" if any(result["fast"] for result in results.values()) else ""
    parts = [INTRODUCTION.format(level=LEVEL, mode=mode), f"Of {len(found)} rows: {counted(found)}.\n"]
    for paper, title in PAPERS.items():
        of_paper = [outcome for outcome in found if outcome.row.paper == paper]
        parts += [f"\n## arXiv:{paper}\n\n{title}\n", "| row | place | verdict |\n| --- | --- | --- |"]
        parts += [f"| [{o.row.id}](#{o.row.id}) | {_cell(o.row.place)} | {o.verdict} |" for o in of_paper]
        parts += [_section(outcome) for outcome in of_paper]
    parts.append(
        "\n## Experiments\n\n| experiment | mode | seed | version | minutes |\n| --- | --- | --- | --- | --- |"
    )
    for name, result in results.items():
        mode = "fast" if result["fast"] else "full"
        cells = (name, mode, str(result["seed"]), result["version"], f"{result['seconds'] / 60:.1f}")
        parts.append(f"| {' | '.join(map(_cell, cells))} |")
    if figures:
        parts.append("\n## Figures\n\nPoints are measured, lines are laws, by experiment.\n")
        parts += [f"### {name}\n\n![{name}]({file})\n" for name, file in figures.items()]
    return "\n".join(parts) + "\n"


def _section(outcome: Outcome) -> str:
    row, said = outcome.row, reason(outcome)
    lines = [
        f"\n### {row.id}\n",
        f"{row.place[0].upper()}{row.place[1:]}. {row.says}\n",
        f"**{outcome.verdict.capitalize()}**{f': {said}' if said else ''}. Law: `{row.law}`."
        f" Difference allowed: {row.tolerance}.\n",
        f"`{row.command}`\n",
    ]
    if outcome.claims:
        lines.append("| comparison | predicted | measured | a wrong law | |\n| --- | --- | --- | --- | --- |")
    order = sorted(outcome.claims, key=lambda claim: claim["literal"])
    for claim in order[:MOST_CLAIMS]:
        verdict = f"literal reading, {claim['verdict']}" if claim["literal"] else claim["verdict"]
        lines.append("| " + " | ".join(map(_cell, (claim["statement"], *numbers(claim), verdict))) + " |")
    if (more := len(order) - MOST_CLAIMS) > 0:
        lines.append(f"\nand {more} more: `{row.command} --all`")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text with the characters of Markdown escaped."""
    for mark in "\\|*_`<[":
        text = text.replace(mark, f"\\{mark}")
    return text
