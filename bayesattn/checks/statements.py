"""Verdict of a validation in sentences: disagreements, reasons why the draws cannot tell, and their sensitivity."""

from typing import TYPE_CHECKING

import numpy as np

from bayesattn._util.text import with_error
from bayesattn.checks.comparison import Compared
from bayesattn.checks.predicted import size_of
from bayesattn.checks.verdict import CANNOT_TELL, DOES_NOT_HOLD, doubts_about, percent

if TYPE_CHECKING:
    from bayesattn.checks.validation import Validation

MOST_NAMED_ENTRIES = 5
"""Largest number of differing entries that are named one by one."""


def failures(validation: "Validation") -> list[str]:
    """Disagreements, one sentence each."""
    entries, draws = validation.entries, validation.order_parameter[np.tril_indices(len(validation.corrected))]
    apart = np.flatnonzero(~entries.agrees)
    sentences = [
        f"{entries.names[entry]} is {with_error(draws[entry], entries.error[entry])} by the draws,"
        f" {with_error(draws[entry] - entries.difference[entry], entries.allowance[entry])} by the theory"
        for entry in sorted(apart, key=lambda entry: -entries.excess[entry])[:MOST_NAMED_ENTRIES]
    ]
    if len(apart) > MOST_NAMED_ENTRIES:
        sentences.append(f"{len(apart) - MOST_NAMED_ENTRIES} more entries of U differ, of {len(entries.names)}")
    if not validation.joint_p >= entries.level:
        below = int(np.sum(entries.difference < 0))
        sentences.append(
            f"the entries of U differ jointly, {below} of {len(entries.names)} below the theory:"
            f" p = {validation.joint_p:.1g}, expected at least {entries.level:.2g}"
        )
    if validation.directions is not None:
        along = validation.directions
        sentences += [
            f"mean predictors differ along {along.names[direction]} by"
            f" {with_error(along.difference[direction], along.error[direction])}, of which"
            f" {along.allowance[direction]:.2g} are allowed"
            for direction in np.flatnonzero(~along.agrees)
        ]
    return sentences


def doubts(validation: "Validation") -> list[str]:
    """Reasons why the draws cannot tell, one sentence each; empty unless the verdict is "cannot tell"."""
    if unmixed := doubts_about("U", validation.diagnostics.chains, validation.rhat, validation.ess):
        return unmixed
    if validation.verdict != CANNOT_TELL:
        return []
    family, worst = _least_bounded(validation)
    difference, bound = abs(family.difference[worst]) / family.size[worst], family.bound[worst]
    error, allowance, noise = (
        values[worst] / family.size[worst] for values in (family.error, family.allowance, family.noise)
    )
    text = (
        f"{family.names[worst]} differs by ({with_error(100 * difference, 100 * error)}) %, so by at most"
        f" {percent(bound)}, and the margin is {percent(validation.margin)}"
    )
    # The lower confidence bound exceeds the margin.
    if 2 * difference - bound > validation.margin and allowance > noise:
        return [f"{text}: to first order in 1/N the theory leaves out up to {percent(allowance)}; draw a wider network"]
    return [f"{text}: draw more"]


def statement(validation: "Validation") -> str:
    """Verdict and sensitivity in one sentence."""
    if not validation.usable:
        return f"{CANNOT_TELL}: {'; '.join(doubts(validation))}"
    if validation.verdict == DOES_NOT_HOLD:
        return f"{DOES_NOT_HOLD}: {'; '.join([*failures(validation), _cause(validation)])}"
    tested = f"joint test of {len(validation.entries.names)} entries: p = {validation.joint_p:.2g}"
    return f"{validation.verdict}: {'; '.join([*doubts(validation), _sensitivity(validation), tested])}"


def _least_bounded(validation: "Validation") -> tuple[Compared, int]:
    """Family and index of the quantity with the largest confidence bound."""
    family = max(validation.families, key=lambda compared: np.max(compared.bound))
    return family, int(np.argmax(family.bound))


def _cause(validation: "Validation") -> str:
    """Statement whether the next order in 1/N may explain the difference, in which case the theory is not refuted."""
    first = float(np.max(np.abs(validation.expected) / size_of(validation.corrected)))
    off = float(max(np.max(np.abs(family.difference) / family.size) for family in validation.families))
    text = f"this is the theory to first order in 1/N, which changes U by up to {percent(first)}: the missing part is"
    if off < first:
        return f"{text} less, which the next order can be; it would be a quarter or less at twice the width"
    return f"{text} more, {percent(off)}, which the next order of a series that converges is not"


def _sensitivity(validation: "Validation") -> str:
    """Sensitivity: largest difference compatible with the draws, and smallest one flagged in any quantity."""
    allowance, noise = validation.visible()
    of = "|U| and the mean predictor" if validation.directions else "|U|"
    text = (
        f"largest difference still compatible: {percent(validation.bound)} of {of}, smallest that this run would have"
        f" flagged: {percent(allowance + noise)} ({percent(allowance)} for what the theory leaves out, {percent(noise)} for"
        " Monte Carlo error)"
    )
    if validation.bound <= allowance + noise:
        return text
    family, worst = _least_bounded(validation)
    gap = abs(family.difference[worst]) / family.size[worst]
    return (
        f"{text}, which is less, since {family.names[worst]} was found {percent(gap)} off and may by Monte Carlo error"
        f" be {percent(validation.bound - gap)} further off"
    )
