"""A rank that dies, fails or stands still ends every rank (field report B48)."""

import os
import signal

import harness
from harness import CommandLineTest


class KilledRank(CommandLineTest):
    def test_ends_the_others(self):
        command = self.start_endless(mpi=4)
        ranks = command.ranks()
        self.assertEqual(sorted(ranks), [0, 1, 2, 3])
        os.kill(ranks[2], signal.SIGKILL)
        result = command.finish(60)
        self.assert_ends(result, 137)
        # Open MPI's launcher is kept quiet, so scripts/launch says it; MPICH's says it on standard output.
        if result.over_mpich:
            self.assertRegex(result.out, r"signal (9|15)")
        else:
            self.assertEqual(result.err.count("signal 9"), 1, result)
        self.assert_gone(ranks.values())


class KilledStage(CommandLineTest):
    def test_ends_the_pipeline(self):
        command = self.start_endless("mesh.tp=2", "mesh.pp=2", mpi=4)
        ranks = command.ranks()
        os.kill(ranks[3], signal.SIGKILL)
        self.assert_ends(command.finish(60), 137)
        self.assert_gone(ranks.values())


class StandingStage(CommandLineTest):
    def test_is_reported_by_the_watchdog(self):
        command = self.start_endless("mesh.pp=2", "fault.watchdog_seconds=4", mpi=2)
        ranks = command.ranks()
        os.kill(ranks[1], signal.SIGSTOP)
        result = command.finish(60)
        self.assert_error(result, 6, "rank 0 (pp 0) waited 4 s for ")
        report = next(line for line in result.err.splitlines() if "waited 4 s for " in line)
        self.assertRegex(report, r"waits (for|until) rank 1 \(pp 1\)")  # what else is in flight stands in lines of its own
        self.assert_gone(ranks.values())


class StandingRank(CommandLineTest):
    def test_is_reported_by_the_watchdog(self):
        command = self.start_endless("fault.watchdog_seconds=2", mpi=4)
        ranks = command.ranks()
        os.kill(ranks[3], signal.SIGSTOP)
        result = command.finish(60)
        self.assert_error(result, 6, "waited 2 s for ")
        report = next(line for line in result.err.splitlines() if "waited 2 s for " in line)
        self.assertRegex(report, r"error: rank [012] \(dp [012]\) waited 2 s for .* of .*; waits (for|until) .*rank 3 \(dp 3\)")
        self.assert_gone(ranks.values())


def obstruct_rank_1(test):
    (test.folder / "runs" / "tiny" / "log" / "rank_00001.txt").mkdir(parents=True)


class FailingRank(CommandLineTest):
    def test_that_is_not_the_first_ends_all_threads(self):
        obstruct_rank_1(self)
        self.assert_error(self.train(harness.ENDLESS, "logging.level=debug", ranks=4), 2, "run.dir: ", "rank_00001.txt")

    def test_that_writes_fails_all_threads(self):
        command = self.start_endless(ranks=4)
        harness.fail_writes_of(command.process.pid)
        self.assert_error(command.finish(60), 2, "metrics.jsonl cannot be written")
        self.assertGreaterEqual(len(self.metrics()), 3)


class FailingRankOverMpi(CommandLineTest):
    def test_that_is_not_the_first_ends_all_processes(self):
        obstruct_rank_1(self)
        self.assert_error(self.train(harness.ENDLESS, "logging.level=debug", mpi=4), 2, "run.dir: ", "rank_00001.txt")

    def test_that_writes_fails_all_processes(self):
        command = self.start_endless(mpi=4)
        ranks = command.ranks()
        harness.fail_writes_of(ranks[0])
        self.assert_error(command.finish(60), 2, "metrics.jsonl cannot be written")
        self.assert_gone(ranks.values())


if __name__ == "__main__":
    harness.main()
