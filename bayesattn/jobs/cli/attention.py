"""`bayesattn theory` of a model that samples queries and keys: which of several attentions the posterior prefers."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from bayesattn._util.text import with_error
from bayesattn.jobs.cli.screen import new_table, print_json, print_table, say, working
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.queries_keys import QueriesAndKeys, heads_of
from bayesattn.questions.preferred_attention import compare_attention, most_probable_attention
from bayesattn.tasks.load import heads_of_task


def print_attentions(cases: list[AttentionModel], seed: int, as_json: bool) -> None:
    """Print log evidences of the task's own, uniform and most probable heads, at each width and temperature."""
    with working("searching for the most probable attention", as_json):
        compared = [compare_attention(case, _candidates(case, seed), seed=seed) for case in cases]
    if as_json:
        print_json(
            [
                {"temperature": case.temperature} | each._asdict()
                for case, comparison in zip(cases, compared, strict=True)
                for each in comparison.rows
            ]
        )
        return
    table = new_table("attention", "N", "T", "log p(Y | Q, K)", "below the best", text=("attention",))
    for case, comparison in zip(cases, compared, strict=True):
        for each in comparison.rows:
            below = "" if each.difference == 0 else with_error(-each.difference, each.difference_error)
            cells = (str(each.width), f"{case.temperature:g}", with_error(each.log_evidence, each.error), below)
            table.add_row(each.candidate, *cells)
    print_table(f"{cases[0].name}: log evidence of several attentions", table)
    for comparison in compared:
        say(comparison.summary())
    if any(each.candidate == "most probable" for each in compared[0].rows):
        say("most probable: the maximum of log p(Y | Q, K) + log p(Q, K) found by ascent from a prior draw")


def _candidates(case: AttentionModel, seed: int) -> dict[str, Any]:
    """Candidates by name: the task's own heads, if it has any, the most probable heads, and uniform heads."""
    prior, found = QueriesAndKeys.of(case), {}
    if all((*case.query_variance, *case.key_variance)):  # With a variance of 0, all attention is uniform.
        rng = np.random.default_rng(seed)
        start = heads_of(prior.named({name: jnp.asarray(rng.normal(size=shape)) for name, shape in prior.sites()}))
        found["most probable"] = most_probable_attention(case, start).queries_and_keys
    found["uniform"] = [tuple(np.zeros(shape) for _ in range(2)) for shape in prior.shapes]
    own = heads_of_task(case)
    return found if own is None else {"the task's": own} | found
