"""Hostile command lines by the thousand: nonsense for every option of every command, in a folder of files that are none.

    python tests/cli/hostile.py --count 1000 --seed 1

Every line must end with exit code 0, 2 or 130, say at most one sentence when it refuses, show no traceback, and leave everything as it was
when it refuses. Options are read off the commands themselves, so new ones are tried as well. Lines that would begin long work carry one
option that must be refused. Each line runs in a fork of this process, a few in processes of their own.
"""

import argparse
import ctypes
import hashlib
import io
import json
import os
import random
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

SECONDS = 120  # for one line, on a busy machine
MEMORY = 6 * 2**30
ALLOWED = (0, 2, 130)
WAYS = ("pipe", "pipe", "pipe", "pipe", "full", "closed", "unread", "ascii")

NUMBERS = ["nan", "inf", "-inf", "-1", "0", "-0.0", "1e308", "1e-320", "1e999", "99999999999999999999", "9" * 400, "2147483648", "0.5", "3"]
WHOLE = ["-1", "0", "1", "7", "1000000", "2147483648", "-99999999999999999999", "99999999999999999999", "9" * 400]
NO_NUMBERS = ["", " ", "1_0", "0x10", "１２", "٣", "one", "true", "None", "1,2", "1;2", "1,", ",", "1,,2", "1e", "--", "{}", "NaN(1)", "½"]
TEXTS = ["", " ", "é", "🦊", "a" * 5000, "../" * 100, "%s%n", "\x1b[31mred", "two\nlines", "tab\there", "nosuch", "scale", "[bold]", "'"]
TEXTS.append(os.fsdecode(b"\xff\xfe"))
LISTS = ["1,2", "nan,1", "inf,inf", "-1,2", "1,1", "0,1", "1_0,2", "1,2,3", "1e308,1", "1" + ",1" * 2000, "5e-324,1"]
PATHS = [
    "", ".", "missing", "missing/below", "folder", "empty", "binary", "unreadable", "locked", "locked/new", "folder/new", "file/new",
    "loop", "dangling", "nested.json", "nested.toml", "nested.csv", "underscore.csv", "levels.csv", "true.toml", "good.csv", "latin.csv",
    "nul.csv", "wide.csv", "twice.csv", "plan.json", "cut.json", "huge.json", "list.json", "café 🦊.csv", "-dash", "new", "new\nline",
    "a" * 300, "a/" * 3000, os.fsdecode(b"bytes\xff"),
]  # fmt: skip
OUTSIDE = ["..", "/", "/dev/null", "/proc/self/mem"]
WRITTEN = ("--out", "--page", "--keep")

TOML = ["true", "1", "-1", "nan", "inf", "1e999", "99999999999999999999", '""', '"x"', "[]", "[1, 2]", "{}", "{a = 1}", "1979-05-27"]
FILES = 30

SHARES = ["--epsilon", "1,2", "--share", "0.5,0.5", "--holders", "1000", "--delta", "1e-5"]
MECHANISM = ["--rate", "0.1", "--noise-multiplier", "2", "--steps", "10", "--delta", "1e-5"]
BASES = {
    "plan": [
        [*SHARES, "--steps", "10", "--batch", "10", "--accountant", "rdp"],
        ["--budgets", "good.csv", "--delta", "1e-5", "--steps", "5", "--batch", "1"],
        ["--budgets", "levels.csv", "--policy", "true.toml", "--steps", "5", "--batch", "1"],
    ],
    "account": [["plan.json"], MECHANISM, MECHANISM, MECHANISM, ["nested.json"], ["huge.json"]],
    "train": [["--dataset", "digits", "--steps", "1"], ["--table", "wide.csv", "--target", "y"], ["--arrays", "folder"], []],
    "pate": [["--dataset", "digits", "--teachers", "2"], []],
    "federate": [["--dataset", "digits", "--rounds", "1", "--clients", "20"], ["--engine", "deployment", "127.0.0.1:1"], []],
    "demo": [["--seeds", "1"], []],
}
# What must be refused, whatever else is said: work never begins.
REFUSED = {
    "train": "--momentum nan; --lr -1; --seed -1; --scheme nosuch; --optimizer nosuch; --model nosuch; --out file; --out folder; "
    "--epsilon nan; --reserve nan; --batch nan; --steps 0; --resume; --config nested.toml; --accountant nosuch; --clip -1; "
    "--data file --dataset mnist",
    "pate": "--variant nosuch; --aggregator nosuch; --accounting nosuch; --epsilon nan; --reserve 2; --seed -1; --out folder; --labels 0; "
    "--teachers -1; --budgets missing; --dataset nosuch; --noise nan",
    "federate": "--engine nosuch; --scheme nosuch; --seed -1; --split nosuch; --server-optimizer nosuch; --rounds 0; --accountant nosuch; "
    "--per-round nan; --out file; --model nosuch; --clients -1; --clip nan; --lr nan; --epochs 0; --batch -1; --delta nan; --server-lr nan",
    "demo": "--epsilon 1; --epsilon nan,1,2; --epsilon 2,1,0; --page locked/page.html; --page folder; --seeds 0",
}
LONGER = ("--steps", "--accountant", "--config", "--dataset", "--table", "--arrays", "--resume")
ODD = [words.split() for words in (
    "", "nosuch", "--nosuch", "--version", "--show-completion", "--version nosuch", "--help", "plan --help", "train --help", "PLAN",
    "plan extra", "account one two", "demo extra", "-- plan", "-1", "plan --epsilon", "a" * 5000,
    "plan --steps=1 --steps=2", "account --json", "federate one two", "train --resume --out folder", "train --resume --out missing",
    "train --resume", "account -- --json",
)]  # fmt: skip
ODD += [[""], ["é\n🦊"], [os.fsdecode(b"\xff")]]

OPTIONS = {}


@dataclass(frozen=True)
class Line:
    """One command line, how its output is taken, and whether it must be refused."""

    arguments: list[str]
    way: str = "pipe"
    refused: bool = False
    alone: bool = False

    def __str__(self):
        words = " ".join(shlex.quote(word if len(word) < 60 else word[:60] + "...") for word in self.arguments)
        return f"sartor {words} [{self.way}{', alone' if self.alone else ''}]"


def options():
    """Every option of every command: its name, what kind of value it takes, whether it stands by itself."""
    import typer

    from sartor.cli import app

    found = {}
    for name, command in typer.main.get_command(app).commands.items():
        found[name] = []
        for parameter in command.params:
            if parameter.param_type_name != "option" or parameter.opts == ["--help"]:
                continue
            path = str(parameter.metavar or "") in ("FILE", "DIR", "RUN")
            kind = "flag" if getattr(parameter, "is_flag", False) else "path" if path else parameter.type.name
            found[name].append((parameter.opts[-1], kind))
    return found


def value(rng, name, kind):
    """A hostile value, sometimes one that is merely odd."""
    if kind == "path":
        made = {"--config": "config{}.toml", "--schema": "schema{}.toml", "--budgets": "people{}.csv"}.get(name)
        others = PATHS if name in WRITTEN else PATHS + OUTSIDE
        return rng.choice(others) if made is None or rng.random() < 0.4 else made.format(rng.randrange(FILES))
    if kind in ("integer", "float", "integer range", "float range"):
        numbers = WHOLE if kind.startswith("integer") else NUMBERS + WHOLE
        return rng.choice(numbers if rng.random() < 0.9 else NUMBERS + NO_NUMBERS + TEXTS)
    if name in ("--epsilon", "--share", "--delta"):
        return rng.choice(LISTS + NUMBERS + NO_NUMBERS)
    return rng.choice(TEXTS + NO_NUMBERS + LISTS)


def lines(count, seed):
    """So many lines, the same for the same seed; any beginning of them is well mixed."""
    rng, known = random.Random(seed), OPTIONS
    for place in range(count):
        if place % 16 == 15:
            yield Line(rng.choice(ODD), rng.choice(WAYS), alone=place % 64 == 63)
            continue
        command = rng.choice(["plan", "plan", "plan", "account", "account", "train", "train", "pate", "federate", "federate", "demo"])
        arguments = [command, *rng.choice(BASES[command])]
        if command == "account" and rng.random() < 0.4:
            arguments = [command, f"plan{rng.randrange(FILES)}.json"]
        short = command == "train" and rng.random() < 0.3
        if short:  # work that is over soon, whatever else is said
            arguments = [command, "--dataset", "digits", "--steps", "1", "--accountant", "rdp"]
        open_to = [option for option in known[command] if not (short and option[0] in LONGER)]
        for name, kind in rng.sample(open_to, min(len(open_to), rng.choice([1, 1, 1, 2, 2, 3, 6]))):
            arguments += [name] if kind == "flag" else [name, value(rng, name, kind)]
        refused = command in REFUSED and not short
        arguments += rng.choice(REFUSED[command].split(";")).split() if refused else []
        yield Line(arguments, rng.choice(WAYS), refused, alone=place % 40 == 7)


def world(folder):
    """A folder of files that are missing, broken, locked, or not what they seem."""
    folder.mkdir()
    for name in ("folder", "locked", "tmp", "home"):
        (folder / name).mkdir()
    nested = "[" * 100_000 + "]" * 100_000
    rows = "".join(f"p{i},{1 + i % 2}\n" for i in range(40))
    plan = {"scheme": "scale", "steps": 10, "groups": [{"epsilon": 1e308, "holders": -1}]}
    texts = {
        "file": "file", "empty": "", "unreadable": "secret", "folder/inside": "inside", "locked/inside": "inside",
        "nested.json": nested, "nested.toml": f"a = {nested}", "nested.csv": '"' * 99_999, "cut.json": '{"a": "b', "list.json": "[1, 2]",
        "huge.json": json.dumps({**plan, "steps": 10**400}), "underscore.csv": "holder,epsilon\na,1_0\nb,2\n",
        "good.csv": f"holder,epsilon\n{rows}",
        "levels.csv": "holder,level\na,strict\nb,open\n", "true.toml": "delta = 1e-5\n[levels]\nstrict = true\nopen = 2\n",
        "twice.csv": "holder,epsilon\na,1\na,2\n", "wide.csv": "x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(60)), "-dash": "dash",
        "café 🦊.csv": f"holder,epsilon\n{rows}", "nul.csv": "holder,epsilon\na\0b,1\n",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    rng = random.Random(7)
    for number in range(FILES):
        (folder / f"plan{number}.json").write_text(mutated_plan(rng, (folder.parent / "plan.json").read_text()))
        names = [name for name, _ in OPTIONS["train"]]
        pairs = {rng.choice(names)[2:].replace("-", "_"): rng.choice(TOML) for _ in range(rng.choice([1, 2, 5]))}
        (folder / f"config{number}.toml").write_text("".join(f"{name} = {value}\n" for name, value in pairs.items()))
        keys = ("target", "columns", "classes", "bounds", "categories", "delta", "nosuch", "test", "id_column")
        (folder / f"schema{number}.toml").write_text("".join(f"{key} = {rng.choice(TOML)}\n" for key in rng.sample(keys, 3)))
        people = [f"p{i},{rng.choice(NUMBERS + NO_NUMBERS)},{rng.choice(['1e-5', *NUMBERS])}" for i in range(3)]
        (folder / f"people{number}.csv").write_text("\n".join(["holder,epsilon,delta", *people]))
    (folder / "binary").write_bytes(bytes(range(256)) * 8)
    (folder / "latin.csv").write_bytes(b"holder,epsilon\n\xe9,1\n")
    (folder / os.fsdecode(b"bytes\xff")).write_bytes(b"\xff")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere/at all")
    (folder / "plan.json").write_text((folder.parent / "plan.json").read_text())
    (folder / "unreadable").chmod(0)
    (folder / "locked").chmod(0o555)
    return folder


def mutated_plan(rng, text):
    """A plan in which one value is another."""
    document = json.loads(text)
    inside = document
    while True:
        key = rng.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
        if not isinstance(inside[key], dict | list) or not inside[key] or rng.random() < 0.2:
            break
        inside = inside[key]
    inside[key] = rng.choice([None, True, -1, 0, 10**400, 1e308, "nan", "inf", "", [], {}, [[]], "é", float("nan"), 0.5, [1, 2, 3]])
    return json.dumps(document)


def listing(folder):
    """Everything in a folder: kinds, modes, contents, links and when it was last changed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        content = os.readlink(path) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = (state.st_mode, state.st_size if content else 0, content)
    return found


def as_anybody():
    """Take from root the right to read and write what is locked (the capabilities DAC_OVERRIDE and DAC_READ_SEARCH)."""
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    library.capget(header, data)
    for place in (0, 1):
        data[place] &= ~0b110
    library.capset(header, data)


def outcome(line, folder):
    """The exit code of one line and what it said; -1 if it did not end in time."""
    said = folder.parent / "said"
    environment = {**os.environ, "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "PYTHONUTF8": "0"}
    environment.pop("SARTOR_DATA", None)
    if line.way == "ascii":
        environment.update(PYTHONIOENCODING="ascii", LC_ALL="C")
    reading, writing = os.pipe() if line.way == "unread" else (None, None)
    target = {"full": "/dev/full"}.get(line.way, os.devnull)
    out = writing if writing is not None else os.open(target, os.O_WRONLY)
    if reading is not None:
        os.close(reading)
    with open(said, "wb") as errors:
        if line.alone:
            code = in_process(line, folder, environment, out, errors)
        else:
            child = os.fork()
            if not child:
                in_fork(line, folder, environment, out, errors)
            code = waited(child)
    os.close(out)
    return code, said.read_bytes().decode(errors="replace")


def in_process(line, folder, environment, out, errors):
    def prepare():
        as_anybody()
        if line.way == "closed":
            os.close(1)

    process = subprocess.Popen(
        [sys.executable, "-m", "sartor", *map(os.fsencode, line.arguments)],
        cwd=folder, env=environment, stdout=out, stderr=errors, stdin=subprocess.DEVNULL, preexec_fn=prepare,
    )  # fmt: skip
    try:
        return process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return -1


def in_fork(line, folder, environment, out, errors):
    """As a process of its own would run it, from its streams to what its end prints."""
    code = 1
    try:
        as_anybody()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        os.dup2(out, 1)
        os.dup2(errors.fileno(), 2)
        encoding = "ascii" if line.way == "ascii" else "utf-8"
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding, "backslashreplace", write_through=True)
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding)
        if line.way == "closed":
            os.close(1)
            sys.stdout = None
        from sartor.cli import main

        sys.argv = ["sartor", *line.arguments]
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except (OSError, ValueError):
            code = 120
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def waited(child):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def fault(line, code, said, before, after):
    """What is wrong with an outcome, or nothing."""
    if code == -1:
        return "did not end"
    if code not in ALLOWED:
        return f"exit code {code}"
    if "Traceback" in said or "Exception ignored" in said:
        return "a traceback"
    if code == 2 and said.lower().startswith("usage: ") and before == after:
        return None  # the help, to who asked for nothing
    told = [row for row in said.splitlines() if row.strip() and not row.startswith(("warning (", "note: "))]
    if code == 2 and before != after:
        return f"left {sorted(set(before.items()) ^ set(after.items()))[:3]}"
    if code == 2 and (len(told) != 1 or len(told[0]) > 1000):
        return f"{len(told)} sentences"
    if code == 2 and any(ord(letter) < 32 for letter in told[0]):
        return "a sentence with control characters"
    asks = {"--help", "--version"} & set(line.arguments)
    if code == 0 and line.refused and not asks and line.way != "unread":
        return "not refused"
    return None


def faults(count, seed, folder, only=None):
    """Every line with a fault: what was typed, the fault, and what was said."""
    prepared(folder)
    here = world(folder / "0")
    before = listing(here)
    for place, line in enumerate(lines(count, seed)):
        if only is not None and place != only:
            continue
        start = time.monotonic()
        code, said = outcome(line, here)
        after = listing(here)
        wrong = fault(line, code, said, before, after)
        if os.environ.get("HOSTILE_SHOW"):
            print(place, code, f"{time.monotonic() - start:.1f}", line, "|", said.strip()[-300:], file=sys.stderr)
        if wrong:
            yield {"place": place, "line": str(line), "fault": wrong, "code": code, "said": said[-1500:], **asdict(line)}
        if after != before:
            here = world(folder / str(place + 1))
            before = listing(here)


def prepared(folder):
    """Import what commands import, once, and make the plan that `account` reads."""
    import importlib

    for name in (
        "sartor.cli",
        "sartor.data",
        "sartor.models",
        "sartor.pate",
        "sartor.pate.labelling",
        "sartor.sgd",
        "sartor.federated.task",
        "rich.table",
    ):
        importlib.import_module(name)
    from sartor.data import load

    load("digits")
    OPTIONS.update(options())
    import sartor

    sartor.plan(sartor.Budgets.from_groups([(1.0, 20), (2.0, 30)], delta=1e-5), steps=10, batch=5, accountant="rdp").save(
        folder / "plan.json"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="one line alone, by its place")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostile ") as folder:
        found = list(faults(asked.count, asked.seed, Path(folder), asked.only))
    for one in found:
        print(f"{one['place']}: {one['line']}\n  {one['fault']} (code {one['code']}): {one['said'].strip()[-700:]}")
    print(f"{asked.count} lines, {len(found)} with a fault.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
