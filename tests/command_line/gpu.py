"""device.kind: what a GPU is, where there is one and where there is none."""

import os
import pathlib
import subprocess
import unittest.mock

import harness
from harness import CommandLineTest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"

SMALL = ("model.seq_length=8", "model.heads=2", "train.global_batch_size=4", "train.eval_steps=1")


def gpu_check(verb):
    """scripts/gpu_check with the tested binary in place of the carried one, on sizes for an emulated GPU."""
    environment = {**os.environ, "QUINTET_GPU_CHECK_BINARY": harness.BINARY, "QUINTET_GPU_CHECK_TINY": "1",
                   "QUINTET_SHARED_CORES": "1"}
    return subprocess.run([SCRIPTS / "gpu_check", verb], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=400)


class WithoutCuda(CommandLineTest):
    def test_cuda_is_refused_with_the_remedy(self):
        result = self.train("device.kind=cuda", ranks=2)
        self.assert_error(result, 2, "device.kind: cuda cannot be had: this build has no CUDA; build with")
        self.assertFalse((self.folder / "runs").exists())

    def test_auto_is_the_cpu(self):
        result = self.train("train.steps=1")
        self.assertEqual(result.code, 0, result)
        self.assertIn("CPU, 1 thread", result.out)

    def test_kernels_cannot_be_measured(self):
        self.assert_error(self.quintet("bench", "kernels"), 2, "this build has no CUDA; build with")

    def test_the_check_says_so_in_one_line(self):
        for verb in ("train", "run"):
            result = gpu_check(verb)
            self.assertEqual((result.returncode, result.stdout), (2, ""), result)
            self.assertEqual(result.stderr, "scripts/gpu_check: nothing can be run on a GPU here: this build has no CUDA; "
                             "build with cmake --preset cuda where the CUDA toolkit is installed\n")


class Gpu(CommandLineTest):
    def test_version_names_it(self):
        text = self.quintet("--version").out
        self.assertIn("CUDA 13.0 (emulated), cuBLASLt 13.0.0", text)
        self.assertIn("emulated GPU (sm_90", text)

    def test_one_that_cannot_be_used_is_named_with_the_reason(self):
        for variable, value, reason in (
                ("DRIVER", 0, "no NVIDIA driver is installed"),
                ("DRIVER", 12040, "the NVIDIA driver offers CUDA 12.4, which is too old for 13.0; update the driver"),
                ("DEVICES", 0, "no GPU is visible (cudaErrorNoDevice)"),
                ("CAPABILITY", 75, "GPU 0, emulated GPU (sm_75, 69 GB), is too old; sm_80 is the oldest that can be used")):
            with unittest.mock.patch.dict(os.environ, {f"QUINTET_EMULATION_{variable}": str(value)}):
                self.assertTrue(self.quintet("--version").out.endswith(f"; {reason}\n"))
                self.assert_error(self.train("device.kind=cuda"), 2,
                                  f"device.kind: cuda cannot be had: {reason}; or choose cpu")
                self.assert_error(self.quintet("bench", "kernels", "--tiny"), 2, reason)
                self.assertIn("CPU, 1 thread", self.train("train.steps=1").out)

    def test_auto_takes_it_and_ranks_that_share_it_train_as_the_cpu(self):
        losses = {}
        for kind, ranks in (("cpu", 1), ("auto", 1), ("cuda", 4)):
            mesh = ["mesh.tp=2", "mesh.pp=2"] if ranks == 4 else []
            result = self.train(f"device.kind={kind}", f"run.dir={self.folder}/{kind}/runs", "train.eval_every=1",
                                "logging.weight_dump_steps=[2]", "train.steps=2", *SMALL, *mesh, ranks=ranks)
            self.assertEqual(result.code, 0, result)
            self.assertEqual("GPU 0: emulated GPU" in result.out, kind != "cpu", result)
            losses[kind] = [line["loss"] for line in self.steps(self.folder / kind)]
            self.assertTrue((self.folder / kind / "runs/tiny/weights/step_00000002/model.safetensors").exists())
        for kind in ("auto", "cuda"):
            for got, expected in zip(losses[kind], losses["cpu"], strict=True):
                self.assertLess(abs(got - expected), 2e-5 * expected)

    def test_fp64_stays_on_the_cpu(self):
        result = self.train("precision.compute=fp64", "train.steps=1")
        self.assertEqual(result.code, 0, result)
        self.assertIn("CPU, 1 thread", result.out)
        self.assert_error(self.train("precision.compute=fp64", "device.kind=cuda"), 2, "fp64 is for proofs on the CPU")

    def test_a_loss_that_is_not_finite_names_a_tensor(self):
        result = self.train("device.kind=cuda", "optimizer.learning_rate=1.0e+38", "optimizer.clip_grad_norm=0", *SMALL,
                            "train.steps=4", "mesh.tp=2", "mesh.pp=2", ranks=4)
        self.assert_error(result, 5, "the first tensor that is not finite is")

    def test_a_failing_rank_ends_those_that_share_its_gpu(self):
        command = self.start_endless("device.kind=cuda", "mesh.tp=2", "mesh.pp=2", *SMALL, ranks=4)
        harness.fail_writes_of(command.process.pid)
        result = command.finish(60)
        self.assert_error(result, 2, "metrics.jsonl cannot be written")
        self.assertNotIn("GPU emulator:", result.err)  # nobody has touched what another gave back

    def test_bench_runs_each_operation(self):
        for dtype, swiglu, adamw in (("bf16", 9216, 15360), ("fp32", 18432, 14336)):
            result = self.quintet("bench", "kernels", "--tiny", "--dtype", dtype)
            self.assertEqual(result.code, 0, result)
            lines = [" ".join(line.split()) for line in result.out.splitlines()]
            self.assertIn(f"swiglu, forward {swiglu} bytes", lines)
            self.assertIn(f"AdamW {adamw} bytes", lines)
            self.assertIn("product, backward, weight 524288 FLOPs", lines)


class GpuCheck(CommandLineTest):
    def test_layouts_and_whole_steps_are_tried_and_shown(self):
        result = gpu_check("train")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result)
        for dtype in ("fp32", "bf16"):
            self.assertIn(f"== every layout against one rank, {dtype}, ranks share the GPU\n| mesh |", result.stdout)
        for row in ("dp 2", "tp 2", "pp 2, pipeline.schedule=gpipe", "dp 2, tp 2, pp 2, zero.stage=0"):
            self.assertEqual(result.stdout.count(f"| {row} |"), 2, result.stdout)
        for model in ("gpt2_124m", "gpt2_1.5b", "llama_1b"):
            self.assertRegex(result.stdout, rf"== whole steps of {model} in bf16.*\n1 ranks of .* tokens/s")
        self.assertIn("all steps passed", result.stdout)


class GpuOverMpi(CommandLineTest):
    def test_they_cannot_share_one(self):
        result = self.train("device.kind=cuda", *SMALL, mpi=2)
        self.assert_error(result, 2, "start one process with --ranks 2")


if __name__ == "__main__":
    harness.main()
