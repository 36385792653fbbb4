"""bayesattn validate exchangeable: does attention infer a latent posterior?"""

import time
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from bayesattn.cli.screen import FAILS, HOLDS, errors, print_json, save_results, screen
from bayesattn.exchangeable.claims import Claim
from bayesattn.exchangeable.validation import SECTIONS, validate

NAME = "exchangeable"


def validate_claims(seed: int, folder: Path, as_json: bool) -> None:
    """Check every claim, print the table, draw the figure; ends with exit status 0 if all is as it should be."""
    start = time.perf_counter()
    with errors.status("checking") as status:
        found = validate(seed, progress=lambda name: status.update(f"checking: {name}"))
    content = {"model": NAME, "seed": seed} | found.to_dict()
    from bayesattn.exchangeable import plots

    save_results(folder, content, plots.figure(found))
    if as_json:
        print_json(content)
    else:
        _print(found.claims, found.as_expected)
        screen.print(f"{time.perf_counter() - start:.0f} s; figure and results in {folder}")
    raise typer.Exit(HOLDS if found.as_expected else FAILS)


def _print(claims: list[Claim], holds: bool) -> None:
    for section, title in SECTIONS.items():
        table = Table(title=f"{section} {title}", title_justify="left", box=None, padding=(0, 2, 0, 0), expand=True)
        table.add_column("claim", ratio=5)
        table.add_column("law", ratio=4)
        table.add_column("predicted", justify="right", no_wrap=True)
        table.add_column("measured", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        for claim in claims:
            if claim.section != section:
                continue
            relation = "" if claim.relation == "=" else f"{claim.relation} "
            measured = f"{claim.measured:.4g}" + (f" ± {claim.error:.1g}" if claim.error else "")
            verdict = {
                (True, False): "holds",
                (False, False): "FAILS",
                (False, True): "fails, literally taken",
                (True, True): "HOLDS, but should fail",
            }[claim.holds, claim.literal]
            style = None if claim.as_expected and not claim.literal else "yellow" if claim.as_expected else "bold red"
            cells = (claim.statement, claim.law, f"{relation}{claim.predicted:.4g}", measured, verdict)
            table.add_row(*map(Text, cells), style=style)
        screen.print(table)
        screen.print()
    plain, literal = ([claim for claim in claims if claim.literal == kind] for kind in (False, True))
    screen.print(
        f"Does attention infer the latent posterior? {sum(c.holds for c in plain)} of {len(plain)} claims hold, within 3"
        f" standard errors or the tolerance stated;"
        f" {sum(not c.holds for c in literal)} of {len(literal)} literal readings fail"
        + (", and hold with the qualification beside them." if holds else "."),
        style="bold green" if holds else "bold red",
    )
