"""What the number of ranks and the way of launching them must not change."""

import subprocess

import harness
from harness import CommandLineTest


def untimed(lines):
    return [{key: value for key, value in line.items() if key not in harness.TIMING_FIELDS} for line in lines]


class ThreadsAndMpi(CommandLineTest):
    def check_equal(self, ranks, zero, *overrides):
        folders = {}
        for launch in ("threads", "mpi"):
            folders[launch] = self.folder / f"{launch}_{ranks}_{zero}"
            folders[launch].mkdir()
            launched = {"mpi": ranks} if launch == "mpi" else {"ranks": ranks}
            result = self.train(f"parallel.zero.stage={zero}", "logging.weight_dump_steps=[10]", "train.eval_every=4",
                                "logging.gradient_dump_steps=[1]", *overrides, folder=folders[launch], **launched)
            self.assertEqual(result.code, 0, result)
        threads, mpi = (untimed(self.metrics(folder)) for folder in folders.values())
        self.assertEqual(len(threads), 13)
        self.assertEqual(threads, mpi)
        threads, mpi = (folder / "runs" / "tiny" for folder in folders.values())
        self.assertEqual((threads / "config.yaml").read_text(), (mpi / "config.yaml").read_text())
        for dump in ("weights/step_00000010/model.safetensors", "gradients/step_00000001.safetensors"):
            self.assertEqual((threads / dump).read_bytes(), (mpi / dump).read_bytes())

    def test_eight_ranks_zero_1(self):
        self.check_equal(8, 1)

    def test_eight_ranks_zero_0(self):
        self.check_equal(8, 0)

    def test_two_ranks(self):
        self.check_equal(2, 1)

    def test_a_mesh_of_three_axes(self):
        self.check_equal(8, 1, "mesh.tp=2", "mesh.pp=2", "model.dropout=0.1")

    def test_several_stages_a_rank(self):
        self.check_equal(2, 1, "mesh.pp=2", "parallel.pipeline.schedule=interleaved",
                         "parallel.pipeline.virtual_stages=2", "model.layers=4")

    def test_backwards_in_parts(self):
        self.check_equal(4, 3, "mesh.pp=2", "parallel.pipeline.schedule=zero_bubble_v", "model.layers=4",
                         "parallel.recompute=full")

    def test_a_ring_of_context_ranks(self):
        self.check_equal(4, 2, "mesh.cp=4", "parallel.recompute=selective")

    def test_a_ring_that_does_not_wrap(self):
        self.check_equal(4, 1, "mesh.cp=4", "parallel.context.balance=none")

    def test_context_ranks_that_gather(self):
        self.check_equal(4, 1, "mesh.cp=4", "parallel.context.method=all_gather")

    def test_context_ranks_that_exchange_heads(self):
        self.check_equal(4, 1, "mesh.cp=4", "parallel.context.method=ulysses", "model.kv_heads=2")

    def test_a_mesh_of_context_ranks_and_masked_documents(self):
        self.check_equal(8, 1, "mesh.cp=2", "mesh.tp=2", "model.dropout=0.1", "data.end_of_document=32",
                         "data.document_mask=true", "data.mask_end_of_document=true")

    def test_a_mesh_with_experts(self):
        self.check_equal(8, 1, "mesh.tp=2", "mesh.ep=2", "model.moe.experts=4", "model.moe.capacity_factor=1.0",
                         "model.moe.shared_experts=1")

    def test_experts_on_the_stages_of_a_pipeline(self):
        self.check_equal(8, 0, "mesh.pp=2", "mesh.ep=4", "model.moe.experts=4", "model.moe.balance=bias")


class DataRanks(CommandLineTest):
    """Field reports B34 and B55."""

    def test_counts_and_losses_do_not_depend_on_ranks(self):
        losses = []
        for ranks, micro_batch in ((1, 1), (1, 2), (2, 1), (4, 2), (8, 1)):
            result = self.train(f"train.micro_batch_size={micro_batch}", "precision.compute=fp64",
                                f"run.dir={self.folder}/{ranks}_{micro_batch}/runs", ranks=ranks)
            self.assertEqual(result.code, 0, result)
            steps = self.steps(self.folder / f"{ranks}_{micro_batch}")
            self.assertEqual([line["tokens"] for line in steps], [256 * step for step in range(1, 11)])
            for line in steps:
                self.assertAlmostEqual(line["tokens_per_second"] * line["step_seconds"], 256, delta=1e-6)
            losses.append([line["loss"] for line in steps])
        for other in losses[1:]:
            for one, another in zip(losses[0], other):
                self.assertAlmostEqual(one, another, delta=1e-10)
        self.assertLess(losses[0][-1], losses[0][0] - 0.5)


class TensorPipelineAndContextRanks(CommandLineTest):
    """Field report B55, and what a dump holds."""

    def test_change_neither_counts_nor_losses_nor_dumps(self):
        runs = {}
        for mesh in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)):
            folder = self.folder / "tp{}_pp{}_cp{}".format(*mesh)
            tp, pp, cp = mesh
            result = self.train(f"mesh.tp={tp}", f"mesh.pp={pp}", f"mesh.cp={cp}", "precision.compute=fp64",
                                "logging.weight_dump_steps=[0]", f"run.dir={folder}/runs", "data.validation=0.1",
                                ranks=tp * pp * cp)
            self.assertEqual(result.code, 0, result)
            steps = self.steps(folder)
            self.assertEqual([line["tokens"] for line in steps], [256 * step for step in range(1, 11)])
            initial = (folder / "runs" / "tiny" / "weights" / "step_00000000" / "model.safetensors").read_bytes()
            runs[mesh] = [line["loss"] for line in self.metrics(folder) if "loss" in line], initial
        losses, initial = runs.pop((1, 1, 1))
        for other_losses, other_initial in runs.values():
            self.assertEqual(initial, other_initial)
            for one, another in zip(losses, other_losses):
                self.assertAlmostEqual(one, another, delta=1e-10)


class Evaluation(CommandLineTest):
    """Field report B15."""

    def test_evaluating_changes_no_training_loss(self):
        runs = {}
        for every in (0, 2, 5):
            folder = self.folder / f"every_{every}"
            result = self.train("train.steps=20", "model.dropout=0.1", f"train.eval_every={every}",
                                f"run.dir={folder}/runs", ranks=2)
            self.assertEqual(result.code, 0, result)
            evaluated = [line["step"] for line in self.metrics(folder) if "validation_loss" in line]
            self.assertEqual(evaluated, list(range(every, 21, every)) if every else [20])
            runs[every] = [line["loss"] for line in self.steps(folder)]
        self.assertEqual(len(runs[0]), 20)
        self.assertEqual(runs[0], runs[2])
        self.assertEqual(runs[0], runs[5])


class CompareLayouts(CommandLineTest):
    def compare(self, binary):
        command = [harness.LAUNCH.parent / "compare_layouts", "--binary", binary, "--config", self.config, "--layouts", "few",
                   "--steps", "3", "--check"]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=harness.DEADLINE)

    def test_equal_layouts_pass(self):
        result = self.compare(harness.BINARY)
        self.assertEqual((result.returncode, result.stderr), (0, ""), result)
        self.assertRegex(result.stdout, r"\n\| dp 2, tp 2, pp 2, zero.stage=0 \| 8 \| \d\.\d{12} \| \d\.\d{12} \|")
        self.assertNotIn("too far", result.stdout)

    def test_one_that_trains_to_other_numbers_is_found(self):
        other = self.folder / "quintet"
        other.write_text(f'#!/bin/sh\ncase "$*" in *"--ranks 8 "*) set -- "$@" run.seed=8 ;; esac\n'
                         f'exec {harness.BINARY} "$@"\n')
        other.chmod(0o755)
        result = self.compare(other)
        self.assertEqual(result.returncode, 1, result)
        far = [line for line in result.stdout.splitlines() if "too far" in line]
        self.assertEqual(len(far), 1, result.stdout)
        self.assertIn("dp 2, tp 2, pp 2", far[0])

    def test_one_that_fails_is_found(self):
        other = self.folder / "quintet"
        other.write_text(f'#!/bin/sh\ncase "$*" in *"--ranks 8 "*) exit 6 ;; esac\nexec {harness.BINARY} "$@"\n')
        other.chmod(0o755)
        result = self.compare(other)
        self.assertEqual(result.returncode, 1, result)
        self.assertIn("| dp 2, tp 2, pp 2, zero.stage=0 | 8 | failed |", result.stdout)


if __name__ == "__main__":
    harness.main()
