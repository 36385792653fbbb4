"""Code blocks of README and of the documentation do what they say: they are executed in the order of their page.

Python blocks and commands draw less than they say (`executed`, `SHORTER`), on fewer examples and on data made here;
nothing else of them is changed, and only installation is left out.
"""

import io
import re
import shlex
import shutil
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

import bayesattn as ba
from bayesattn.checks.thresholds import VERDICTS
from bayesattn.jobs.sweep.plan import SweepTable
from bayesattn.prediction import score
from bayesattn.questions import exchangeable

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```(\w*)(?: title=[^\n]*)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = "from transformers import"
"""What marks a block that `test_transformers.py` executes, where PyTorch is installed."""
MOST_LINES = 120
FEW = ["--chains", "2", "--warmup", "50", "--draws", "100"]  # As much warm-up as in `executed`: programs are shared.
SHORTER = {
    "bayesattn validate hidden_markov": ["--width", "10", *FEW],
    "bayesattn validate mine.toml": ["--width", "50", *FEW],
    "bayesattn sample hidden_markov": FEW,
    "bayesattn heads mine.toml": FEW,
}
"""What is added to a command that begins so; later options stand in for earlier ones."""
SMALL = {"examples": 20, "test_examples": 100}
"""Size of the task that pages sample."""
SIZES = {"networks": (12, 6), "transformers": (100, 231)}
"""Examples and features of two pages: with more, one samples 6,237 coordinates of classes; the other trains on 60 of 100."""
HOWTOS = sorted((ROOT / "docs/howto").glob("*.md"))
EVERY = [ROOT / "docs/index.md", *HOWTOS, *sorted((ROOT / "docs/from").glob("*.md"))]
PAGES = [page for page in EVERY if "```python" in page.read_text()]


def blocks(page):
    """Language and text of each block, and what stands before it."""
    text = page.read_text()
    return [(found[1], found[2], text[: found.start()]) for found in BLOCK.finditer(text)]


def executed(block, names, whole=False):
    """Executes Python with a small task, and 2 chains, 50 draws and steps of warm-up, or as many of them as it says."""
    block = re.sub(r'("hidden_markov", width=\d+)\)', rf"\1, task={SMALL})", block)
    shorter = block.replace("chains=4", "chains=2")
    shorter = re.sub(r'(ba\.sample\(model(?:, "\w+")?)\)', r"\1, chains=2, warmup=1, draws=1)", shorter)
    shorter = re.sub(r"\b(draws|warmup|num_samples|num_warmup|num_steps)=[\d_]+", r"\1=50", shorter)
    exec(compile(block if whole else shorter, "block", "exec"), names)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    model, folder = ba.load_model("hidden_markov", width=10, task=SMALL), tmp_path_factory.mktemp("out") / "run-10"
    return ba.runs.sample(model, folder, chains=2, warmup=50, draws=100)


@pytest.fixture
def names(run, tmp_path, monkeypatch, request):
    """What a reader has: inputs, patterns, labels, a mask, classes; queries, keys, values; the arrays of mine.npz; a run.

    There are as many examples and features as in the small task, so that its compiled programs serve them too, or few.
    """
    call = getattr(request.node, "callspec", None)
    examples, features = SIZES.get(call.params["page"].stem if call else "", (SMALL["examples"], 231))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run.path, "out/run-10")
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(examples, 5, features)), rng.choice([-1.0, 1.0], examples)
    matrices = [rng.dirichlet(np.ones(5), size=(examples, 2, 5)) for _ in range(2)]
    batches = [(np.asarray(ba.attention.paths_from_matrices(inputs, matrices)), labels)]
    tests = {"test_path_inputs": rng.normal(size=(100, 4, features)), "test_labels": rng.choice([-1.0, 1.0], 100)}
    np.savez("mine.npz", path_inputs=batches[0][0], labels=labels, **tests)
    keys, queries = exchangeable.uniform(rng, 20, 3), exchangeable.uniform(rng, 4, 3)
    values = keys @ rng.normal(size=(3, 1)) + 0.5 * rng.normal(size=(20, 1))
    data = {"inputs": inputs, "matrices": matrices, "labels": labels, "batches": batches}
    cache = {("pattern", 5): rng.dirichlet(np.ones(5), size=(examples, 12, 5))}
    cache |= {(name, 5): rng.normal(size=(examples, 5, 30)) for name in ("resid_pre", "resid_post")}
    data |= {"cache": cache, "read": ba.attention.from_cache(cache, layers=(5,))}
    data |= {"mask": np.ones(inputs.shape[:2], bool), "kinds": rng.choice(["cat", "dog", "bird"], len(inputs))}
    yield data | {"keys": keys, "queries": queries, "values": values}
    plt.close("all")


def test_readme_is_short():
    assert len(README.read_text().splitlines()) <= MOST_LINES


def test_readme(names, command):
    printed = io.StringIO()
    for language, block, before in blocks(README):
        match language:
            case "python":
                with redirect_stdout(printed):
                    executed(block, names)
            case "toml":
                Path(re.findall(r"`(\S+\.toml)`", before)[-1]).write_text(block)
            case "":
                lines = block.replace("\\\n", " ").replace("uv run ", "").splitlines()
                for line in [line for line in lines if not line.startswith("pip install ")]:
                    name, *arguments = shlex.split(line)
                    assert name == "bayesattn", line
                    shorter = [option for start in SHORTER if line.startswith(start) for option in SHORTER[start]]
                    status, out, err = command(*arguments, *shorter)
                    # "The theory does not hold" and "cannot tell" are answers too.
                    assert not status or ("validate" in line and "Does " in out and status in (1, 2)), (line, err)
            case _:
                assert language == "text"
    assert any(printed.getvalue().startswith(f"{verdict}: ") for verdict in VERDICTS)
    assert names["new"].mean.shape == names["new"].label_probabilities.shape == (SMALL["test_examples"],)
    assert names["saddle"].order_parameter.shape == (4, 4)
    assert score(names["draws"]).accuracy > 0.85  # Read at the last token they have 0.75.
    assert names["heads"].summary().shape[0] == 12


@pytest.mark.pages
@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")  # of arviz_stats.compare
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_of_a_page(page, names):
    # Leaving one out warns of few draws: of 200 from a Pareto shape of 0.57 on, of 1000 from 0.67.
    whole = "arviz_stats.loo" in page.read_text()
    for language, block, _ in blocks(page):
        if language == "python" and ELSEWHERE not in block:
            executed(block, names, whole)


@pytest.mark.parametrize("page", HOWTOS, ids=lambda page: page.stem)
def test_what_goes_wrong(page):
    _, found, advice = page.read_text().partition("## When it goes wrong")
    assert found, "a how-to ends with what to do when it goes wrong"
    code = "".join(file.read_text() for file in (ROOT / "bayesattn").rglob("*.py"))
    messages = re.sub(r'"\s*f?"', "", code)  # lines of one message
    for quoted in re.findall(r"^- \*([^*]+)\*", advice, re.MULTILINE):
        assert quoted.removesuffix(" ..") in messages, quoted


def test_tables_of_sweeps():
    tables = [block for language, block, _ in blocks(ROOT / "docs/howto/sweeps.md") if language == "toml"]
    assert len(tables) == 2
    for table in tables:
        SweepTable.model_validate(tomllib.loads(table))
