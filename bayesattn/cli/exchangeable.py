"""bayesattn validate exchangeable: does attention infer a latent posterior?"""

import time
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from bayesattn._text import with_error
from bayesattn.cli.screen import FAILS, HOLDS, print_json, save_results, say, say_where, screen, working
from bayesattn.exchangeable.claims import FAMILY_LEVEL, Findings, Mean
from bayesattn.exchangeable.validation import SECTIONS, validate


def validate_claims(seed: int, folder: Path, as_json: bool, figure: Path | None, overwrite: bool) -> None:
    """Check every claim, print the table, draw the figure; ends with exit status 0 if all is as it should be."""
    start = time.perf_counter()
    with working("checking", as_json) as bar:
        findings = validate(seed, progress=lambda name: bar.update(description=f"checking: {name}"))
    content = {"model": "exchangeable", "seed": seed} | findings.to_dict()
    from bayesattn.exchangeable import plots

    save_results(folder, content, lambda: plots.figure(findings), figure, overwrite)
    if as_json:
        print_json(content)
    else:
        _print(findings)
        say_where(f"{time.perf_counter() - start:.0f} s; figure and results in {folder}")
    raise typer.Exit(HOLDS if findings.as_expected else FAILS)


def _print(findings: Findings) -> None:
    for section, title in SECTIONS.items():
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for claim in findings.claims:
            if claim.section != section:
                continue
            verdict = {
                (True, False): "holds",
                (False, False): "FAILS",
                (False, True): "fails, literally taken: ",
                (True, True): "HOLDS, but should fail, literally taken: ",
            }[findings.holds(claim), claim.literal]
            expected = claim.as_expected(findings.level)
            style = None if expected and not claim.literal else "yellow" if expected else "bold red"
            word, _, reading = verdict.partition(", ")
            relation = "" if claim.relation == "=" else f"{claim.relation} "
            numbers = f"predicted {relation}{_number(claim.predicted)}, measured {_number(claim.measured)}"
            sure = f"p = {claim.p_value:.1g}" if claim.statistical else "exact"
            table.add_row(word, Text(f"{reading}{claim.statement}\n{numbers}, {sure}; law: {claim.law}"), style=style)
        say(f"{section} {title}", style="italic")
        screen.print(table)
        screen.print()
    plain, literal = ([claim for claim in findings.claims if claim.literal == kind] for kind in (False, True))
    say(
        f"Does attention infer the latent posterior? {sum(map(findings.holds, plain))} of {len(plain)} claims hold,"
        f" {sum(not findings.holds(claim) for claim in literal)} of {len(literal)} literal readings fail"
        + (", and hold with the qualification beside them." if findings.as_expected else "."),
        style="bold green" if findings.as_expected else "bold red",
    )
    say(
        f"Exact claims within their rounding; of {sum(claim.statistical for claim in findings.claims)} with a"
        f" standard error each fails below p = {findings.level:.2g}, so that any true one fails with a probability of about"
        f" {FAMILY_LEVEL:g}."
    )


def _number(mean: Mean) -> str:
    return with_error(mean.value, mean.error) if mean.error else f"{mean.value:.4g}"
