"""Faults planted in covered lines one at a time, and the test that finds each.

    uv run --with coverage python benchmarks/planted_faults.py cover
    uv run python benchmarks/planted_faults.py plant --faults 60 --seed 64 [--tests COMMIT] [--skip K]

`cover` runs each file of tests by itself and stores which lines of which modules it reaches. `plant` draws faults, the same
number of each kind, and runs the files of tests that reach the line, those named like the module first, until a test fails;
`--tests` takes the tests of another commit. What is known is kept in build/planted and not run again.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "planted"
PLACES = [
    "theory",
    "kernels",
    "likelihoods",
    "models",
    "samplers",
    "checks",
    "questions",
    "jobs/runs",
    "fixed_attention",
    "network",
]
PYTEST = (sys.executable, "-m", "pytest", "--numprocesses=0", "--quiet", "-p", "no:cacheprovider")
SECONDS = 600
"""After which a fault counts as not found."""
OTHER = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
COMPARED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}


def modules():
    return sorted(path for place in PLACES for path in ROOT.glob(f"bayesattn/{place}*") for path in python_files(path))


def python_files(path):
    return [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


def candidates(source):
    """(kind, line, start, end, replacement) of each fault that can be planted in the body of a function."""
    tree, found = ast.parse(source), []
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    encoded = source.encode()

    def span(node):
        return (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(node):
        begin, end = span(node)
        return encoded[begin:end].decode()

    def add(kind, node, replacement):
        found.append((kind, node.lineno, *span(node), replacement))

    def visit(node):
        if isinstance(node, ast.BinOp) and type(node.op) in OTHER and not isinstance(node.left, ast.JoinedStr):
            left, right = text(node.left), text(node.right)
            kind = "sign" if isinstance(node.op, ast.Add | ast.Sub) else "factor"
            add(kind, node, f"(({left}) {OTHER[type(node.op)]} ({right}))")
            if kind == "sign":
                add("missing term", node, f"({left})")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            add("sign", node, f"({text(node.operand)})")
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
            left, right = text(node.left), text(node.comparators[0])
            add("comparison", node, f"(({left}) {COMPARED[type(node.ops[0])]} ({right}))")
        elif isinstance(node, ast.Subscript):
            for index in ast.walk(node.slice):
                if isinstance(index, ast.Constant) and type(index.value) is int:
                    add("index", index, str(index.value + 1))
        elif isinstance(node, ast.Call) and text(node.func).rpartition(".")[2] in ("branch", "split", "fold_in"):
            if text(node.func) == "branch":
                add("key", node, f"({text(node.args[0])})")
            elif text(node.func) == "jax.random.split":
                count = text(node.args[1]) if len(node.args) > 1 else "2"
                add("key", node, f"jax.numpy.broadcast_to({text(node.args[0])}, ({count},))")
        for child in ast.iter_child_nodes(node):
            # Not what is said of an error, and not types.
            if not isinstance(child, ast.Raise | ast.JoinedStr | ast.AnnAssign | ast.arg):
                visit(child)

    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                visit(statement)
    return sorted(set(found))


def cover():
    """Any number of processes may do this at the same time; Python 3.12 and later hardly notice that lines are counted."""
    (BUILD / "cover").mkdir(parents=True, exist_ok=True)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = str(path.relative_to(ROOT))
        stored = BUILD / "cover" / (name.replace("/", "+") + ".json")
        try:
            stored.touch(exist_ok=False)
        except FileExistsError:
            continue
        data, found = stored.with_suffix(".data"), stored.with_suffix(".new")
        environment = os.environ | {"COVERAGE_FILE": str(data), "COVERAGE_CORE": "sysmon"}
        run = [sys.executable, "-m", "coverage", "run", "--source=bayesattn", *PYTEST[1:], name]
        began = time.perf_counter()
        tested = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        report = [sys.executable, "-m", "coverage", "json", "-q", "-o", str(found)]
        subprocess.run(report, cwd=ROOT, env=environment, check=True)
        files = json.loads(found.read_text())["files"]
        lines = {module: reached["executed_lines"] for module, reached in files.items()}
        stored.write_text(json.dumps({"seconds": seconds, "lines": lines}))
        data.unlink(missing_ok=True)
        found.unlink()
        print(f"{seconds:5.0f} s  {name}  {tested.stdout.splitlines()[-1]}", flush=True)


def drawn(count, seed):
    """Faults of each kind in turn, each at another line that tests reach: {module, line, kind, .., tests}."""
    reached, seconds = defaultdict(list), {}
    for stored in sorted((BUILD / "cover").glob("*.json")):
        name, known = stored.stem.replace("+", "/"), json.loads(stored.read_text())
        seconds[name] = known["seconds"]
        for module, lines in known["lines"].items():
            for line in lines:
                reached[module, line].append(name)
    of_kind = defaultdict(list)
    for path in modules():
        module = str(path.relative_to(ROOT))
        for kind, line, start, end, replacement in candidates(path.read_text()):
            if tests := reached.get((module, line)):
                near = (f"test_{Path(module).stem}.py", Path(module).parent.name)
                far = {name: [place not in Path(name).parts for place in near] for name in tests}
                order = sorted(tests, key=lambda name: (far[name], seconds[name]))
                fault = {"module": module, "line": line, "kind": kind, "start": start, "end": end}
                of_kind[kind].append(fault | {"replacement": replacement, "tests": order})
    source, faults = random.Random(seed), []
    for kind in sorted(of_kind):
        source.shuffle(of_kind[kind])
    while len(faults) < count:
        for kind in sorted(of_kind):
            fault = of_kind[kind].pop()
            if all((fault["module"], fault["line"]) != (other["module"], other["line"]) for other in faults):
                faults.append(fault)
    return faults[:count]


def failing(room, tests, seconds):
    """Name of the first test that fails, or None."""
    environment = os.environ | {"PYTHONPATH": str(room), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(BUILD / "programs"))
    command = [*PYTEST, "--exitfirst", *tests]
    run = subprocess.run(command, cwd=room, env=environment, capture_output=True, text=True, timeout=seconds)
    lines = [line for line in run.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    named = [line.split(" - ")[0].split(maxsplit=1)[1] for line in lines]
    return (named or [f"exit status {run.returncode}"])[0] if run.returncode else None


def planted(fault, room):
    """First test that fails with the fault in place, and not without; None if there is none."""
    path = room / fault["module"]
    sound = path.read_bytes()
    faulty = sound[: fault["start"]] + fault["replacement"].encode() + sound[fault["end"] :]
    tests, began = [name for name in fault["tests"] if (room / name).exists()], time.perf_counter()
    try:
        while True:
            path.write_bytes(faulty)
            name = failing(room, tests, SECONDS - (time.perf_counter() - began))
            path.write_bytes(sound)
            if name is None or "::" not in name or failing(room, [name], SECONDS) is None:
                return name
            tests += ["--deselect", name]
    except subprocess.TimeoutExpired:
        return f"not found in {SECONDS} s"
    finally:
        path.write_bytes(sound)


def plant(count, seed, commit, skip):
    name = commit or "now"
    room, stored = BUILD / f"room-{name}", BUILD / f"found-{name}.json"
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir(parents=True)
    for revision, places in [("HEAD", []), *([(commit, ["tests"])] if commit else [])]:
        for place in places:
            shutil.rmtree(room / place)
        archive = subprocess.run(["git", "archive", revision, *places], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "x"], cwd=room, input=archive.stdout, check=True)
    known = json.loads(stored.read_text()) if stored.exists() else {}
    for number, fault in enumerate(drawn(count, seed)):
        label = f"{fault['module']}:{fault['line']} {fault['kind']} {fault['replacement']}"
        if number >= skip and label not in known:
            began = time.perf_counter()
            known[label] = planted(fault, room)
            stored.write_text(json.dumps(known, indent=1))
            print(f"{number:3d} {time.perf_counter() - began:5.0f} s  {label}\n     {known[label]}", flush=True)
    found = [label for label in known if known[label] and not known[label].startswith("not found")]
    print(f"{len(found)} of {len(known)} faults found by the tests of {name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cover", "plant"])
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=64)
    parser.add_argument("--tests", help="commit whose tests are run")
    parser.add_argument("--skip", type=int, default=0)
    asked = parser.parse_args()
    cover() if asked.what == "cover" else plant(asked.faults, asked.seed, asked.tests, asked.skip)
