"""Outcomes of rows on the terminal."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from bayesattn._util.text import printable
from bayesattn.checks.thresholds import DOES_NOT_HOLD, HOLDS
from bayesattn.jobs.cli.screen import console, say
from reproductions.page import counted, numbers, reason
from reproductions.registry import PAPERS
from reproductions.results import MISSING, NOT_REPRODUCED, OPEN, QUALIFIED, REPRODUCED, Outcome

NARROW = 72
"""Columns below which there is no room for two of text."""
STYLES = {REPRODUCED: "green", QUALIFIED: "green", NOT_REPRODUCED: "red", OPEN: "yellow", MISSING: "dim"}


def show(found: Sequence[Outcome], show_all: bool) -> None:
    """Print the rows of each paper with their verdicts, and with all comparisons or those that decide."""
    for paper, title in PAPERS.items():
        of_paper = [outcome for outcome in found if outcome.row.paper == paper]
        if not of_paper:
            continue
        say(f"arXiv:{paper}  {title}", style="bold")
        if console.width < NARROW:
            for outcome in of_paper:
                say(f"{outcome.row.id}, {outcome.row.place}", style="bold")
                console.print(_described(outcome, show_all), end="\n\n")
            continue
        table = Table(show_header=False, box=None, padding=(0, 2, 1, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for outcome in of_paper:
            table.add_row(f"{outcome.row.id}\n{outcome.row.place}", _described(outcome, show_all))
        console.print(table)
    say(f"Of {len(found)} rows: {counted(found)}. {_claims_counted(found)}", style="bold")


def _claims_counted(found: Sequence[Outcome]) -> str:
    plain, literal = (
        [c for outcome in found for c in outcome.claims if c["literal"] == kind] for kind in (False, True)
    )
    hold, fail = sum(c["verdict"] == HOLDS for c in plain), sum(c["verdict"] == DOES_NOT_HOLD for c in literal)
    return f"{hold} of {len(plain)} comparisons hold, {fail} of {len(literal)} literal readings fail."


def _described(outcome: Outcome, show_all: bool) -> Text:
    row, deciding, explanation = outcome.row, outcome.deciding, reason(outcome)
    text = Text(f"{row.says}\n")
    text.append(outcome.verdict, style=STYLES[outcome.verdict])
    text.append(f": {explanation}\n" if explanation else "\n")
    for claim in outcome.claims if show_all else [deciding] if deciding else []:
        word = f"literally taken, {claim['verdict']}" if claim["literal"] else claim["verdict"]
        predicted, measured, planted = numbers(claim)
        wrong = f"; planted, {planted}" if planted else ""
        text.append(f"{word}: {printable(claim['statement'])}: predicted {predicted}, measured {measured}{wrong}\n")
    return text.append(row.command, style="dim")
