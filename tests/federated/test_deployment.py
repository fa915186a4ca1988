"""A deployment on loopback: a SuperLink, three SuperNodes and an app handed in with `flwr run`, all as a user would start them.

One test tells the whole story, as starting all of that takes longer than any part of it. The noise is off and what each client adds is
known, so the model tells exactly whose answers were used.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from sartor.errors import SartorError
from sartor.federated.ledger import Ledger

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'sartor[federated]'")

APP = Path(__file__).parent / "deployment"
CLIP, CLIENTS, ROUNDS = 1.0, 3, 3  # as in the app
UPDATES = {"a": [0.25, 0.0, -0.5, 0.125], "b": [0.0, 0.5, 0.5, 0.0], "c": [-2.0, 1.0, 0.0, 2.0]}  # c's is clipped
KEYS = {name: f"the-key-of-{name}" for name in UPDATES}
PATIENCE = 240  # seconds, for the busiest of machines
GUARD = """
import os, signal, sys
for group in [int(line) for line in sys.stdin]:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class Deployment:
    """The processes of a deployment; Flower's own files are in a folder for the test alone."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes, self.charges = folder, [], [0]
        self.address = f"127.0.0.1:{free_port()}"
        (folder / "home").mkdir()
        (folder / "home/config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\ninsecure = true\n'
        )
        commands = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        }
        # should the test itself be killed, its end of this pipe closes, and the guard ends what it has started
        self.guard = subprocess.Popen([sys.executable, "-c", GUARD], stdin=subprocess.PIPE, start_new_session=True)

    def start(self, log: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own."""
        with self.log(log).open("wb") as out:
            process = subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        self.guard.stdin.write(f"{process.pid}\n".encode())
        self.guard.stdin.flush()
        return process

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def superlink(self) -> None:
        host, port = self.address.split(":")
        self.start("superlink", "flower-superlink", "--insecure", "--host", host, "--port", port)
        self.until(lambda: answers(host, int(port)), "the SuperLink answers")

    def supernode(self, name: str, log: str) -> subprocess.Popen[bytes]:
        config = f'name="{name}" client-key="{KEYS[name]}" epsilon="inf" delta=0.001 update="{UPDATES[name]}"'
        config += f" partition-id={list(UPDATES).index(name)}"
        link = ["--superlink", self.address, "--port", str(free_port())]
        return self.start(log, "flower-supernode", "--insecure", *link, "--node-config", config)

    def node_id(self, log: str) -> int:
        """What the SuperLink calls a node, once it is there."""
        self.until(lambda: "SuperNode ID: " in self.log(log).read_text(), f"{log} has joined")
        return int(self.log(log).read_text().partition("SuperNode ID: ")[2].split()[0])

    def run(self, log: str, orders: str) -> subprocess.Popen[bytes]:
        """Hand in the app; the process shows its log until the run is over."""
        return self.start(log, "flwr", "run", str(APP), "--stream", "--run-config", f'folder="{self.folder}" orders="{orders}"')

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for what must happen, and watch the charges meanwhile."""
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(f"--- {log.name}\n{log.read_text()[-2_000:]}" for log in sorted(self.folder.glob("*.log")))
                pytest.fail(f"not within {PATIENCE} s: {what}\n{logs}")
            time.sleep(0.1)
            self.charged()

    def charged(self) -> int:
        """Rounds that are on the disk as charged."""
        with suppress(FileNotFoundError):
            self.charges.append(json.loads((self.folder / "ledger/rounds.json").read_text())["charged"])
        return self.charges[-1]

    def model(self) -> np.ndarray:
        """What the server has kept, of a server that is gone."""
        with closing(Ledger(self.folder / "ledger")) as ledger:
            kept = ledger.saved()["server"]
            vector, scalar = kept["vector"]["value"], kept["scalar"]["value"]
        return np.array([*vector.tolist(), float(scalar)])

    def is_free(self) -> bool:
        """Whether no server holds the ledger."""
        try:
            Ledger(self.folder / "ledger").close()
        except SartorError:
            return False
        return True

    def close(self) -> None:
        """End every process, those included that went into groups of their own."""
        for process in self.processes:
            others = descendants(process.pid)
            kill(process)
            for pid in others:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        kill(self.guard)
        self.guard.stdin.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(host: str, port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex((host, port)) == 0


def descendants(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in path.read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group, at once and for good."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with closing(Deployment(tmp_path_factory.mktemp("deployment"))) as made:
        yield made


def mean_of(names: str) -> np.ndarray:
    """How far a round moves the model if these clients' answers are used: their clipped sum over the expected number of clients."""
    updates = np.array([UPDATES[name] for name in names])
    lengths = np.linalg.norm(updates, axis=1, keepdims=True)
    return (updates * np.minimum(1, CLIP / lengths)).sum(0) / CLIENTS


@pytest.mark.long
def test_a_run_that_the_server_refuses_ends_with_another_code_than_0(tmp_path_factory: pytest.TempPathFactory):
    with closing(Deployment(tmp_path_factory.mktemp("refused"))) as alone:
        alone.superlink()
        config = f'folder="{alone.folder}" wait=1.0'
        asked = [sys.executable, "-m", "sartor.federated.submit", str(APP), "--run-config", config]
        submitted, named = alone.start("submitted", *asked), alone.start("named", *asked[:4], "here", *asked[4:])
        short = "import sys, sartor.cli.federate as f; f._WAIT = 1.0; from sartor.cli import main; main(sys.argv[1:])"
        command = ["federate", "--clients", "3", "--per-round", "3", "--rounds", "2", "--scheme", "none", "--engine", "deployment"]
        federated = alone.start("federated", sys.executable, "-c", short, *command, alone.address)
        for name, process in {"submitted": submitted, "named": named, "federated": federated}.items():
            alone.until(lambda process=process: process.poll() is not None, f"{name} ends")
            text = alone.log(name).read_text()
            assert process.returncode == 2, text
            assert re.search("^error: only 0 of 3 required clients enrolled within 1 s", text, re.MULTILINE), text
        assert not (alone.folder / "ledger").exists()
        never = alone.start("never", sys.executable, "-m", "sartor.federated.submit", str(alone.folder / "no app"))
        assert never.wait(PATIENCE) == 2


@pytest.mark.long
def test_a_simulation_that_the_server_refuses_ends_with_another_code_than_0(tmp_path: Path):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'sartor[federated]'")
    more = "from dataclasses import replace; import sartor.cli.federate as f; checked = f.checked; f._WAIT = 1.0; "
    more += "f.checked = lambda *asked: [part if i != 1 else replace(part, min_clients=9) for i, part in enumerate(checked(*asked))]"
    command = ["federate", "--clients", "4", "--per-round", "2", "--rounds", "1", "--scheme", "none", "--json"]
    code = f"import sys; {more}; from sartor.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE, check=False
    )
    assert done.returncode == 2, done.stderr
    assert re.search(r"error: only \d of 9 required clients enrolled within 1 s", done.stderr), done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_killed_nodes_bad_answers_and_a_killed_server_neither_stop_training_nor_forget_a_charge(deployment: Deployment):
    folder = deployment.folder
    deployment.superlink()
    nodes = {name: deployment.supernode(name, log=name) for name in UPDATES}
    deployment.run("first", orders="b1:shape c1:hold c2:hold")

    # Round 1: b sends a wrong shape. c is killed while it trains, and comes back as a node that Flower has never seen.
    deployment.until((folder / "held-c1").exists, "c trains in round 1")
    assert deployment.charged() == 1
    kill(nodes["c"])
    deployment.supernode("c", log="c again")
    killed, back = deployment.node_id("c"), deployment.node_id("c again")
    assert killed != back
    told = deployment.start("unregister", "flwr", "supernode", "unregister", str(killed))  # or its silence is noticed after a minute
    assert told.wait(PATIENCE) == 0

    # Round 2: c is asked again, and the server is killed before it has c's answer.
    deployment.until((folder / "held-c2").exists, "c trains in round 2")
    os.kill(int((folder / "server.pid").read_text()), signal.SIGKILL)
    deployment.until(deployment.is_free, "the server is gone")
    assert deployment.charged() == 2
    np.testing.assert_allclose(deployment.model(), mean_of("a"), atol=1e-8)

    # A new server on the same folder has one round left; b sends numbers that are none.
    (folder / "go").touch()
    orders = ["--run-config", f'folder="{folder}" orders="b3:nan"']
    second = deployment.start("second", sys.executable, "-m", "sartor.federated.submit", str(APP), *orders)
    deployment.until(lambda: second.poll() is not None, "the second run ends")
    assert second.returncode == 0
    assert "[ROUND 1/1]" in deployment.log("second").read_text()
    model = np.array(json.loads((folder / "model.json").read_text()))
    np.testing.assert_allclose(model, mean_of("a") + mean_of("ac"), atol=1e-8)
    np.testing.assert_array_equal(deployment.model(), model)

    # Every round is charged, to every client, under the key that it came with; and each has been told.
    assert deployment.charged() == ROUNDS
    assert deployment.charges == sorted(deployment.charges)
    with closing(Ledger(folder / "ledger")) as ledger:
        assert ledger.keys == tuple(KEYS.values())
        assert ledger.left == 0
        for name, key in KEYS.items():
            assert json.loads((folder / f"account-{name}.json").read_text()) == ledger.client_account(key).to_json()
    assert not any(key in log.read_text() for key in KEYS.values() for log in folder.glob("*.log"))

    # The same SuperLink and SuperNodes serve the command line, which brings an app of its own.
    command = ["federate", "--dataset", "digits", "--clients", "3", "--per-round", "3", "--rounds", "2", "--scheme", "none", "--json"]
    deployed = deployment.start("federate", sys.executable, "-m", "sartor", *command, "--engine", "deployment", deployment.address)
    deployment.until(lambda: deployed.poll() is not None, "sartor federate ends")
    text = deployment.log("federate").read_text()
    assert deployed.returncode == 0, text
    found = json.loads(text[text.index("{") :])
    assert found["rounds"] == 2
    assert found["history"][-1]["accuracy"] > found["history"][0]["accuracy"]
