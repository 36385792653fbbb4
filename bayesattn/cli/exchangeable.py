"""bayesattn validate exchangeable: does attention infer a latent posterior?"""

import time
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from bayesattn.cli.screen import FAILS, HOLDS, print_json, save_results, screen, working
from bayesattn.exchangeable.claims import FAMILY_LEVEL, Findings, Mean
from bayesattn.exchangeable.validation import SECTIONS, validate


def validate_claims(seed: int, folder: Path, as_json: bool, figure: Path | None) -> None:
    """Check every claim, print the table, draw the figure; ends with exit status 0 if all is as it should be."""
    start = time.perf_counter()
    with working("checking", as_json) as bar:
        findings = validate(seed, progress=lambda name: bar.update(description=f"checking: {name}"))
    content = {"model": "exchangeable", "seed": seed} | findings.to_dict()
    from bayesattn.exchangeable import plots

    save_results(folder, content, plots.figure(findings), figure)
    if as_json:
        print_json(content)
    else:
        _print(findings)
        screen.print(f"{time.perf_counter() - start:.0f} s; figure and results in {folder}")
    raise typer.Exit(HOLDS if findings.as_expected else FAILS)


def _print(findings: Findings) -> None:
    for section, title in SECTIONS.items():
        table = Table(title=f"{section} {title}", title_justify="left", box=None, padding=(0, 2, 0, 0), expand=True)
        table.add_column("claim", ratio=5)
        table.add_column("law", ratio=4)
        table.add_column("predicted", justify="right", no_wrap=True)
        table.add_column("measured", justify="right", no_wrap=True)
        table.add_column("p", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        for claim in findings.claims:
            if claim.section != section:
                continue
            relation = "" if claim.relation == "=" else f"{claim.relation} "
            verdict = {
                (True, False): "holds",
                (False, False): "FAILS",
                (False, True): "fails, literally taken",
                (True, True): "HOLDS, but should fail",
            }[findings.holds(claim), claim.literal]
            expected = claim.as_expected(findings.level)
            style = None if expected and not claim.literal else "yellow" if expected else "bold red"
            p_value = f"{claim.p_value:.1g}" if claim.statistical else "exact"
            cells = (claim.statement, claim.law, relation + _number(claim.predicted), _number(claim.measured), p_value)
            table.add_row(*map(Text, (*cells, verdict)), style=style)
        screen.print(table)
        screen.print()
    plain, literal = ([claim for claim in findings.claims if claim.literal == kind] for kind in (False, True))
    screen.print(
        f"Does attention infer the latent posterior? {sum(map(findings.holds, plain))} of {len(plain)} claims hold,"
        f" {sum(not findings.holds(claim) for claim in literal)} of {len(literal)} literal readings fail"
        + (", and hold with the qualification beside them." if findings.as_expected else "."),
        style="bold green" if findings.as_expected else "bold red",
    )
    screen.print(
        f"Exact claims within their rounding; of {sum(claim.statistical for claim in findings.claims)} with a"
        f" standard error each fails below p = {findings.level:.2g}, so that any true one fails with a probability of about"
        f" {FAMILY_LEVEL:g}."
    )


def _number(mean: Mean) -> str:
    return f"{mean.value:.4g}" + (f" ± {mean.error:.1g}" if mean.error else "")
