"""The commands beside train."""

import json

import harness
from harness import CommandLineTest


class Commands(CommandLineTest):
    def succeed(self, *arguments):
        result = self.quintet(*arguments)
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.err, "", result)
        return result.out

    def test_version(self):
        text = self.succeed("--version")
        for word in ("quintet 0.", "built in: cpu, thread ranks", "devices: CPU"):
            self.assertIn(word, text)
        self.assertRegex(text, r"not built in: cuda|CUDA \d+\.\d+ \(sm_.*\), cuBLASLt")

    def test_help_names_every_built_command(self):
        text = self.succeed("--help")
        for word in ("train", "config", "data", "bench"):
            self.assertRegex(text, rf"\n  {word} ")

    def test_config_show_reads_back_to_the_same(self):
        shown = self.succeed("config", "show", self.config, "mesh.dp=2", "optimizer.betas=[0.8, 0.99]")
        self.assertIn("dp: 2", shown)
        copy = self.folder / "copy.yaml"
        copy.write_text(shown)
        self.assertEqual(self.succeed("config", "show", copy), shown)
        self.assertEqual(self.quintet("train", copy, "--ranks", 2, "train.steps=1").code, 0)
        self.assertEqual((self.folder / "runs" / "tiny" / "config.yaml").read_text(),
                         self.succeed("config", "show", copy, "train.steps=1"))

    def test_config_show_groups(self):
        text = self.succeed("config", "show", "--groups", self.config, "mesh.dp=2", "mesh.tp=2")
        self.assertRegex(text, r"\A4 ranks: dp 2 x tp 2; numbered along tp, then dp\n"
                               r"dp  data parallel: .*: \[0 2\] \[1 3\]\ntp  tensor parallel: .*: \[0 1\] \[2 3\]\n\Z")
        self.assertEqual(self.succeed("config", "show", self.config, "--groups", "--world", 1), "1 rank: no groups\n")

    def test_config_validate(self):
        self.assertIn("tiny.yaml is valid", self.succeed("config", "validate", self.config))
        self.assertIn("tiny.yaml is valid", self.succeed("config", "validate", self.config, "--world", 4))
        self.assert_error(self.quintet("config", "validate", self.config, "--world", 3), 2, "train.global_batch_size")
        self.assertFalse((self.folder / "runs").exists())

    def test_config_schema_is_json(self):
        schema = json.loads(self.succeed("config", "schema"))
        self.assertIn("tp", schema["properties"]["mesh"]["properties"])
        self.assertIs(schema["additionalProperties"], False)

    def test_config_explain(self):
        self.assertIn("default:   1", self.succeed("config", "explain", "mesh.tp"))
        self.assert_error(self.quintet("config", "explain", "mesh.tq"), 2,
                          "mesh.tq: unknown key; did you mean mesh.tp?")

    def test_config_keys(self):
        text = self.succeed("config", "keys")
        for key in ("mesh.tp", "fault.watchdog_seconds", "model.rope_theta"):
            self.assertIn(f"`{key}`", text)

    def test_data_inspect(self):
        size = self.data.stat().st_size
        text = self.succeed("data", "inspect", self.data, "--seq-length", 32)
        self.assertIn(f"1 files, {size} bytes, {size} tokens, {(size - 1) // 32} windows of 32", text)
        self.assert_error(self.quintet("data", "inspect", "absent.txt"), 3, "absent.txt")

    def test_bench(self):
        for arguments, words in ((["gemm", "--shape", "64,32,16"], ("d_weight", "    64     32     16 ")),
                                 (["attention", "--shape", "2,32,2,16"], ("backward", "   2     32    2   16 ")),
                                 (["collectives", "--ranks", "2"], ("reduce-scatter", "2 ranks (threads)")),
                                 (["step", self.config, "--ranks", "2", "--steps", "3"], ("2 ranks of 1 threads",))):
            with self.subTest(arguments):
                text = self.succeed("bench", *arguments)
                for word in words:
                    self.assertIn(word, text)

    def test_bench_compares_values_on_one_mesh(self):
        compare = ["bench", "compare", self.config, "--ranks", "2", "--steps", "1"]
        text = self.succeed(*compare, "--key", "parallel.zero.stage", "--values", "0,1")
        self.assertIn("parallel.zero.stage=1: ", text)
        self.assert_error(self.quintet(*compare, "--key", "mesh.tp", "--values", "1,2"), 2,
                          "--values: mesh.tp=2 has another mesh than mesh.tp=1")

    def test_unbuilt_commands_say_so(self):
        for arguments in (["eval", self.config, "--checkpoint", "x"], ["generate", "--prompt", "x"], ["plan", "--json"],
                          ["checkpoint", "verify", "x"], ["trace", "summary", "x"], ["data", "tokenize", "x"]):
            with self.subTest(arguments):
                name = " ".join(arguments[:2] if arguments[0] == "data" else arguments[:1])
                self.assert_error(self.quintet(*arguments), 2, f"quintet {name} is not built yet")


class ShippedConfigs(CommandLineTest):
    """Three steps of the configs that a machine without a GPU can train, those of up to 32 ranks."""
    RANKS = {"quickstart": 8, "five_axes": 32}

    def test_three_steps_train(self):
        for name, ranks in self.RANKS.items():
            with self.subTest(name):
                config = harness.ROOT / "configs" / f"{name}.yaml"
                result = self.quintet("train", config, "--ranks", ranks, "train.steps=3", f"data.train={self.data}",
                                      "device.kind=cpu", "device.threads=1")
                self.assertEqual(result.code, 0, result)
                all_warmup = "the run is all warm-up" in result.out
                self.assertEqual(all_warmup, name == "quickstart", result)
                lines = (self.folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
                self.assertEqual(sum('"loss"' in line for line in lines), 3)


class LargeShippedConfigs(ShippedConfigs):
    RANKS = {"seed_256": 256, "seed_384": 384}


if __name__ == "__main__":
    harness.main()
