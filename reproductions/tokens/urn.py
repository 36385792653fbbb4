"""Checks of EXCHANGEABILITY section 4 where no latent is assumed: an urn, and one whose draws are not exchangeable."""

import numpy as np

from bayesattn.questions import exchangeable as ex
from reproductions.claims import Claim, Curve, Findings, Panel
from reproductions.tokens import urns

START = np.array([0.7, 1.3, 2.0])
"""What the urn holds of three colours."""
LENGTHS = (2, 3, 4, 5, 6)
REPEAT = 1.5
"""How much more the last colour counts for, where draws are not exchangeable."""


def urn(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Latent and sufficiency of urn draws, by enumeration of all sequences of up to four (fast) or six tokens."""
    lengths = LENGTHS[:3] if fast else LENGTHS
    found = [_sufficiency(tokens) for tokens in lengths]
    curves = [
        Curve(f"{name}: {kind}", np.array(lengths), np.array([informed[name, kind] for _, informed in found]))
        for name in ("urn", "urn with memory")
        for kind in ("I(y; X)", "I(y; pi(X))")
    ]
    findings = Findings(panels=[Panel("Information about y", "draws n", "bits", curves)])
    findings.add("tokens-latent", _mixture(lengths))
    findings.add("tokens-sufficient", *found[-1][0])
    return findings


def _mixture(lengths: tuple[int, ...]) -> Claim:
    """De Finetti: one law of z for all numbers of tokens."""
    latent, other = urns.dirichlet(START), urns.dirichlet(2 * START)
    laws = np.concatenate(
        [
            [urns.law(sequences, START), latent.joint(sequences).sum(0), other.joint(sequences).sum(0)]
            for sequences in map(latent.sequences, lengths)
        ],
        axis=1,
    )
    worst = np.argmax(np.abs(laws[0] - laws[1]))
    drawn, mixed, wrong = laws[:, worst].tolist()
    return Claim(
        f"urn draws are a mixture of independent ones, one law of z for all n = {lengths[0]} .. {lengths[-1]}: "
        f"probability, worst of {laws.shape[1]} sequences",
        "E_z prod z_x, z ~ Dirichlet",
        mixed,
        drawn,
        tolerance=1e-13,
        planted=wrong,
        wrong="a Dirichlet law of twice the concentration",
    )


def _sufficiency(tokens: int) -> tuple[list[Claim], dict[tuple[str, str], float]]:
    """Claims on p(y | X), which the urns define without a latent, and information about the next colour."""
    latent = urns.dirichlet(START)
    sequences = latent.sequences(tokens)
    cells = ex.cells(latent.posterior(sequences))
    shorter = ex.cells(latent.posterior(sequences[:, :-1]))
    with_last = cells * len(START) + sequences[:, -1]
    exchangeable, sticky = (_tasks(tokens, repeat) for repeat in (0.0, REPEAT))
    law = "I(y; X), by enumeration"
    claims = [
        Claim(f"urn: cells of pi, n = {tokens}", "(n+V-1 choose V-1)", ex.type_classes(tokens, 3), cells.max() + 1)
    ]
    for name, joint in exchangeable.items():
        claims.append(
            Claim(
                f"urn, y = {name}: I(y; pi(X)) = I(y; X), n = {tokens}",
                law,
                ex.mutual_information(joint),
                ex.mutual_information(ex.merged(joint, cells)),
                tolerance=1e-12,
                planted=ex.mutual_information(ex.merged(joint, shorter)),
                wrong="the posterior without the last token",
            )
        )
    for name, joint in sticky.items():
        whole, kept = ex.mutual_information(joint), ex.mutual_information(ex.merged(joint, cells))
        claims += [
            Claim(
                f"urn that remembers its last colour, y = {name}: I(y; pi(X)) = I(y; X), n = {tokens}",
                law,
                whole,
                kept,
                tolerance=1e-12,
                literal=True,
            ),
            Claim(
                f"urn that remembers its last colour, y = {name}: pi(X) and the last token together are sufficient",
                law,
                whole,
                ex.mutual_information(ex.merged(joint, with_last)),
                tolerance=1e-12,
                planted=kept,
                wrong="pi(X) alone",
            ),
        ]
    informed = {}
    for name, tasks in (("urn", exchangeable), ("urn with memory", sticky)):
        joint = tasks["next colour"]
        informed[name, "I(y; X)"] = ex.mutual_information(joint)
        informed[name, "I(y; pi(X))"] = ex.mutual_information(ex.merged(joint, cells))
    return claims, informed


def _tasks(tokens: int, repeat: float) -> dict[str, np.ndarray]:
    """p(y, X), shape (y, sequence), for two tasks on the next two draws."""
    longer = urns.dirichlet(START).sequences(tokens + 2)
    law = urns.law(longer, START, repeat).reshape(-1, len(START), len(START))
    alike = np.trace(law, axis1=1, axis2=2)
    return {"next colour": law.sum(2).T, "next two alike": np.stack([alike, law.sum((1, 2)) - alike])}
