"""Runs quintet as a user does, in a temporary folder of each case, and reads what it leaves behind.

A test file is started as FILE.py QUINTET_BINARY [CLASS ...]; tests/command_line/CMakeLists.txt names the classes.
"""

import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "scripts" / "launch"
BINARY = ""  # set by main()

DEADLINE = 120  # seconds: what takes longer hangs

CONFIG = """\
run: {name: tiny, dir: runs, seed: 7}
device: {threads: 1}
model: {seq_length: 32, layers: 2, hidden_size: 32, heads: 4}
train: {steps: 10, global_batch_size: 8}
optimizer: {learning_rate: 1.0e-2}
data: {train: %(data)s, validation: 0.1}
logging: {tensorboard: false}
"""

ENDLESS = "train.steps=100000000"
TIMING_FIELDS = ("step_seconds", "tokens_per_second", "tflops_per_rank", "mfu")


class Result:
    """How a command ended."""

    def __init__(self, code, out, err, over_mpich):
        self.code, self.out, self.err, self.over_mpich = code, out, err, over_mpich

    def __str__(self):
        return f"exit code {self.code}\n--- standard output\n{self.out[-3000:]}\n--- standard error\n{self.err[-3000:]}"


def is_running(pid):
    """False for zombies, which only wait for their parent."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descendants(pid):
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # ended meanwhile
    found = [pid]
    for parent in found:
        found += [child for child, of in parents.items() if of == parent]
    return found[1:]


class Command:
    """A running quintet, as threads of one process or, with mpi=N, as N processes of scripts/launch."""

    def __init__(self, folder, arguments, mpi=0, **options):
        line = [str(LAUNCH), str(mpi)] if mpi else []
        options.setdefault("stdout", subprocess.PIPE)
        self.over_mpich = mpi > 0 and "mpich" in os.environ.get("QUINTET_MPIRUN", "")
        environment = {**os.environ, "QUINTET_SHARED_CORES": "1"}
        self.process = subprocess.Popen([*line, BINARY, *map(str, arguments)], cwd=folder, stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, env=environment, **options)

    def ranks(self):
        """Process ids by MPI rank."""
        found = {}
        for pid in descendants(self.process.pid):
            try:
                if os.readlink(f"/proc/{pid}/exe") != os.path.realpath(BINARY):
                    continue
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            variables = dict(entry.split(b"=", 1) for entry in environment if b"=" in entry)
            rank = variables.get(b"OMPI_COMM_WORLD_RANK", variables.get(b"PMI_RANK"))
            if rank is not None:
                found[int(rank)] = pid
        return found

    def finish(self, deadline=DEADLINE):
        """Waits for the end; a command that does not end is a failure."""
        try:
            texts = self.process.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {deadline} s\n{self.kill()}") from None
        return self.result(texts)

    def result(self, texts):
        code = self.process.returncode
        return Result(128 - code if code < 0 else code, *((text or b"").decode(errors="replace") for text in texts),
                      self.over_mpich)

    def kill(self):
        for pid in [*descendants(self.process.pid), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return self.result(self.process.communicate())


class CommandLineTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="quintet_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        words = ["a", "fortune", "never", "says", "the", "river", "is", "far", "from", "mountains", "and", "cookies"]
        choice = random.Random(5)
        self.data = self.folder / "text.txt"
        self.data.write_text(" ".join(choice.choice(words) for _ in range(4000)))
        self.config = self.folder / "tiny.yaml"
        self.config.write_text(CONFIG % {"data": self.data})

    def start(self, *arguments, mpi=0, folder=None, **options):
        command = Command(folder or self.folder, arguments, mpi, **options)
        self.addCleanup(lambda: command.process.poll() is None and command.kill())
        return command

    def quintet(self, *arguments, **options):
        return self.start(*arguments, **options).finish()

    def train(self, *overrides, ranks=1, mpi=0, **options):
        return self.quintet("train", self.config, *([] if mpi else ["--ranks", ranks]), *overrides, mpi=mpi, **options)

    def start_endless(self, *overrides, ranks=1, mpi=0):
        """A training run that is past its third step and goes on until something ends it."""
        launch = [] if mpi else ["--ranks", ranks]
        command = self.start("train", self.config, *launch, ENDLESS, *overrides, mpi=mpi)
        metrics = self.folder / "runs" / "tiny" / "metrics.jsonl"
        give_up = time.monotonic() + DEADLINE
        while not metrics.exists() or metrics.read_text().count("\n") < 3:
            if command.process.poll() is not None or time.monotonic() > give_up:
                self.fail(f"no third step\n{command.kill()}")
            time.sleep(0.02)
        return command

    def metrics(self, folder=None):
        """Every line of metrics.jsonl, each of which must be JSON."""
        path = (folder or self.folder) / "runs" / "tiny" / "metrics.jsonl"

        def refuse(word):
            raise ValueError(f"{word} is no JSON")

        return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]

    def steps(self, folder=None):
        return [line for line in self.metrics(folder) if "loss" in line]

    def assert_ends(self, result, code, *messages):
        """The exit code, and each message exactly once on standard error. MPICH's launcher kills the other ranks when
        the first ends, and may return that signal's number."""
        self.assertIn(result.code, (code, 1, code | 1, 9, code | 9, 15, code | 15) if result.over_mpich and code else (code,), result)
        for message in messages:
            self.assertEqual(result.err.count(message), 1, f"{message!r} must appear once\n{result}")

    def assert_error(self, result, code, *messages):
        """As assert_ends, with exactly one error in all."""
        self.assert_ends(result, code, "error: ", *messages)

    def assert_gone(self, pids):
        """Open MPI's mpirun may end a moment before the ranks that it kills."""
        give_up = time.monotonic() + 30
        while left := [pid for pid in pids if is_running(pid)]:
            if time.monotonic() > give_up:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                self.fail(f"processes are left behind: {left}")
            time.sleep(0.02)


def fail_writes_of(pid):
    """From now on each write of this process to a file, not to a pipe, fails as on a full disk."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def main():
    global BINARY
    BINARY = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
