"""Exit codes, and messages that appear once however many ranks there are.

The classes ...OverMpi repeat a class with processes as ranks, without the cases that are None there: they would show
nothing new.
"""

import os
import pathlib
import signal
import subprocess
import sys

import harness
from harness import CommandLineTest


class ConfigErrors(CommandLineTest):
    LAUNCH = {"ranks": 4}

    def test_all_problems_are_listed_once_and_nothing_is_written(self):
        result = self.train("mesh.tp=3", "model.layrs=4", "optimizer.clip_grad_norm=-1", "train.steps=many",
                            **self.LAUNCH)
        self.assert_error(result, 2, "model.layrs=4: unknown key; did you mean model.layers?",
                          "3 does not divide model.heads (4); choose 1, 2 or 4", "optimizer.clip_grad_norm=-1",
                          "train.steps=many")
        if not result.over_mpich:  # its launcher says there how a rank ended
            self.assertEqual(result.out, "")
        self.assertFalse((self.folder / "runs").exists())

    def test_in_the_file_name_line_and_column(self):
        """Field report B58."""
        text = self.config.read_text()
        problems = {
            "learning_rate: 1.0e-2": ("learning_rat: 1.0e-2", "tiny.yaml:5:13: optimizer.learning_rat: unknown key"),
            "train: {": ("train: {steps: 3, ", "train.steps"),
            "model: {": ("lr: 1\nmodel: {", "tiny.yaml:3:1: lr: unknown key"),
            "device: {threads: 1}": ("device: [1]", "tiny.yaml:2:9: device"),
            "logging: {": ("\tlogging: {", "tiny.yaml:7:1"),
        }
        for old, (new, message) in problems.items():
            with self.subTest(new):
                self.config.write_text(text.replace(old, new))
                result = self.train(**self.LAUNCH)
                self.assert_error(result, 2)
                self.assertIn(message, result.err)
                self.assertFalse((self.folder / "runs").exists())

    def test_of_the_command_line(self):
        for arguments, message in ((["train"], "CONFIG is required"),
                                   (["train", "missing.yaml"], "missing.yaml: no such file"),
                                   (["frobnicate"], "quintet: there is no command frobnicate; choose train, config"),
                                   (["config", "shw"], "quintet config: there is no command shw; choose show"),
                                   ([], "quintet: a command is missing"),
                                   (["eval", self.config, "--checkpoint", "x"], "quintet eval is not built yet")):
            with self.subTest(arguments):
                self.assert_error(self.quintet(*arguments, mpi=self.LAUNCH.get("mpi", 0)), 2, message)


class ConfigErrorsOverMpi(ConfigErrors):
    LAUNCH = {"mpi": 4}
    test_in_the_file_name_line_and_column = None


class RunFolder(CommandLineTest):
    LAUNCH = {"ranks": 2}

    def test_with_a_file_in_its_place(self):
        (self.folder / "runs").write_text("")
        self.assert_error(self.train(**self.LAUNCH), 2, "run.dir: runs/tiny cannot be used: ")

    def test_of_an_earlier_run(self):
        for _ in range(2):
            result = self.train("train.steps=2", **self.LAUNCH)
            self.assertEqual(result.code, 0, result)
        self.assertIn("earlier_1", result.out)
        self.assertEqual(len(self.steps()), 2)
        refused = self.train("train.steps=2", "checkpoint.resume=never", **self.LAUNCH)
        self.assert_error(refused, 2, "checkpoint.resume: never, and runs/tiny holds an earlier run")
        self.assertEqual(len(self.steps()), 2)


class RunFolderOverMpi(RunFolder):
    LAUNCH = {"mpi": 2}
    test_of_an_earlier_run = None


class DataErrors(CommandLineTest):
    LAUNCH = {"ranks": 2}

    def check(self, path, *messages):
        self.assert_error(self.train(f"data.train={path}", **self.LAUNCH), 3, *messages)
        self.assertFalse((self.folder / "runs").exists())

    def test_missing(self):
        self.check("absent.txt", "data.train: absent.txt")

    def test_empty(self):
        (self.folder / "void.txt").write_text("")
        self.check("void.txt", "void.txt is empty")

    def test_too_short(self):
        (self.folder / "short.txt").write_text("too short")
        self.check("short.txt", "short.txt")

    def test_that_cannot_be_read(self):
        os.mkfifo(self.folder / "pipe.txt")
        self.check("pipe.txt", "pipe.txt is not a regular file")


class DataErrorsOverMpi(DataErrors):
    LAUNCH = {"mpi": 2}
    test_empty = None
    test_too_short = None
    test_that_cannot_be_read = None


class NonFinite(CommandLineTest):
    """Field report B50."""
    LAUNCH = {"ranks": 2}

    def test_stops_the_run_and_names_step_tensor_and_rank(self):
        result = self.train("optimizer.learning_rate=1e30", **self.LAUNCH)
        self.assert_error(result, 5, "step 2: loss is ", "the first tensor that is not finite is layers.0.")
        self.assertRegex(result.err, r"on rank [01] \(dp [01]\)")
        self.assertEqual([line["step"] for line in self.metrics()], [1, 2])
        self.assertTrue(self.metrics()[1]["skipped"])

    def test_names_the_earliest_tensor_of_a_pipeline(self):
        result = self.train("optimizer.learning_rate=1e30", "mesh.pp=2", **self.LAUNCH)
        self.assert_error(result, 5, "the first tensor that is not finite is layers.0.", "on rank 0 (pp 0)")

    def test_is_skipped_on_demand(self):
        result = self.train("optimizer.learning_rate=1e30", "fault.on_non_finite=skip", "fault.max_skipped_steps=3",
                            **self.LAUNCH)
        self.assert_error(result, 5, "step 5: ", "more than fault.max_skipped_steps (3)")
        self.assertEqual([line["skipped"] for line in self.metrics()], [False, True, True, True, True])


class NonFiniteOverMpi(NonFinite):
    LAUNCH = {"mpi": 2}
    test_is_skipped_on_demand = None


class Signals(CommandLineTest):
    LAUNCH = {"ranks": 2}

    def check(self, number):
        command = self.start_endless(**self.LAUNCH)
        ranks = command.ranks()
        os.kill(command.process.pid, number)
        result = command.finish()
        self.assertEqual(result.code, 128 + number, result)
        self.assertEqual(result.out.count("stopped   by signal"), 1, result)
        self.assertEqual(result.err.count("error"), 0, result)
        steps = self.steps()
        self.assertEqual([line["step"] for line in steps], list(range(1, len(steps) + 1)))
        self.assert_gone(ranks.values())

    def test_term(self):
        self.check(signal.SIGTERM)

    def test_int(self):
        self.check(signal.SIGINT)

    def test_usr1(self):
        self.check(signal.SIGUSR1)


class SignalsOverMpi(Signals):
    LAUNCH = {"mpi": 2}


class RanksInsideMpi(CommandLineTest):
    def test_are_refused_in_a_world_of_several(self):
        result = self.quintet("train", self.config, "--ranks", 2, mpi=2)
        self.assert_error(result, 2, "--ranks 2: the launcher has started 2 processes")
        self.assertFalse((self.folder / "runs").exists())

    def test_work_in_a_world_of_one(self):
        result = self.quintet("train", self.config, "--ranks", 2, mpi=1)
        self.assertEqual(result.code, 0, result)
        self.assertIn("dp 2, tp 1, pp 1, ep 1, cp 1 = 2 ranks", result.out)


class Console(CommandLineTest):
    """Standard output that is a file, closed, or a pipe whose reader has gone."""
    LAUNCH = {"ranks": 2}

    def test_of_a_file_shows_plain_lines(self):
        result = self.train(**self.LAUNCH)
        self.assertEqual(result.code, 0, result)
        self.assertNotIn("\x1b", result.out)
        self.assertNotIn("\r", result.out.replace("\r\n", "\n"))
        last = [line for line in result.out.splitlines() if line.startswith("step 10/10  100.0%  loss ")]
        self.assertEqual(len(last), 1, result)

    def test_that_is_closed_disturbs_no_output(self):
        closed = "import os, sys; os.close(1); os.execv(sys.argv[1], sys.argv[1:])"
        mpi = self.LAUNCH.get("mpi")
        line = [str(harness.LAUNCH), str(mpi)] if mpi else []
        ranks = [] if mpi else ["--ranks", "2"]
        result = subprocess.run([sys.executable, "-c", closed, *line, harness.BINARY, "train", self.config, *ranks],
                                cwd=self.folder, timeout=harness.DEADLINE, stderr=subprocess.PIPE, check=False)
        self.assertEqual(result.returncode, 0, result)
        self.assertEqual(len(self.steps()), 10)
        lines = pathlib.Path(self.folder / "runs" / "tiny" / "log.txt").read_text().splitlines()
        self.assertEqual(sum("step 10/10  100.0%" in line for line in lines), 1)

    def test_whose_reader_leaves_does_not_hang(self):
        reader, writer = os.pipe()
        command = self.start("train", self.config, *([] if "mpi" in self.LAUNCH else ["--ranks", "2"]), harness.ENDLESS,
                             mpi=self.LAUNCH.get("mpi", 0), stdout=writer)
        os.close(writer)
        os.read(reader, 10)
        os.close(reader)
        self.assertNotEqual(command.finish(60).code, 0)


class ConsoleOverMpi(Console):
    LAUNCH = {"mpi": 2}


if __name__ == "__main__":
    harness.main()
