// What each type of value may look like.
#include <limits>

#include "tests/config/loading.h"

namespace quintet::config {
namespace {

std::string value_problem(const std::string& override) {
  const std::string message = problems_with({override});
  const std::string prefix = "command line: " + override + ": ";
  return message.rfind(prefix, 0) == 0 ? message.substr(prefix.size()) : message;
}

TEST_CASE("an integer is written in plain decimal digits", "[quick][config]") {
  CHECK(load_small({"train.steps=1000"}).train.steps == 1000);
  CHECK(load_small({"run.seed=+7"}).run.seed == 7);
  CHECK(load_small({"run.seed=9223372036854775807"}).run.seed == std::numeric_limits<int64_t>::max());

  CHECK(value_problem("train.steps=1e3") == "1e3 is not written as an integer; write 1000");
  CHECK(value_problem("train.steps=1.0e3") == "1.0e3 is not written as an integer; write 1000");
  CHECK(value_problem("train.steps=1000.0") == "1000.0 is not written as an integer; write 1000");
  CHECK(value_problem("train.steps=1_000") == "1_000 is not written as an integer; write 1000");
  CHECK(value_problem("train.steps=1,000") == "1,000 is not written as an integer; write 1000");
  CHECK(value_problem("train.steps=0x10") == "0x10 is not written as an integer; write 16");
  CHECK(value_problem("train.steps=0o17") == "0o17 is not written as an integer; write 15");
  CHECK(value_problem("train.steps=010") == "010 is not written as an integer; write 10");
  CHECK(value_problem("train.steps=1e-4") == "1e-4 does not fit; expected an integer of at least 1");
  CHECK(value_problem("train.steps=2.5") == "2.5 does not fit; expected an integer of at least 1");
  CHECK(value_problem("train.steps=\"3\"") == "\"3\" is text; write 3 without quotes");
  CHECK(value_problem("train.steps='three'") == "\"three\" does not fit; expected an integer of at least 1");
  CHECK(value_problem("train.steps=true") == "true does not fit; expected an integer of at least 1");
  CHECK(value_problem("train.steps=null") == "expects an integer of at least 1; found null");
  CHECK(value_problem("train.steps=") == "expects an integer of at least 1; found nothing");
  CHECK(value_problem("train.steps=[3]") == "expects an integer of at least 1; found a list");
  CHECK(value_problem("train.steps={a: 3}") == "expects an integer of at least 1; found keys");
  CHECK(value_problem("train.steps=99999999999999999999") == "99999999999999999999 does not fit into 64 bits");
  CHECK(value_problem("train.steps=.nan") == ".nan does not fit; expected an integer of at least 1");
}

TEST_CASE("an integer out of its range is refused with the range", "[quick][config]") {
  CHECK(value_problem("train.steps=0") == "0 is out of range; expected an integer of at least 1");
  CHECK(value_problem("model.layers=-3") == "-3 is out of range; expected an integer from 1 to 16384");
  CHECK(value_problem("parallel.zero.stage=4") == "4 is out of range; expected an integer from 0 to 3");
  CHECK(value_problem("model.hidden_size=1000000000000000000") ==
        "1000000000000000000 is too large; the largest is 2147483647");
}

TEST_CASE("auto stands for a value where the key allows it", "[quick][config]") {
  CHECK(load_small({"device.threads=auto"}).device.threads == 0);
  CHECK(load_small({"device.threads=3"}).device.threads == 3);
  CHECK_FALSE(load_small({"device.peak_tflops=auto"}).device.peak_tflops);
  CHECK(load_small({"device.peak_tflops=0.5"}).device.peak_tflops == 0.5);
  CHECK(value_problem("device.threads=0") == "0 is out of range; expected an integer from 1 to 1024, or auto");
  CHECK(value_problem("device.threads=\"auto\"") ==
        "\"auto\" does not fit; expected an integer from 1 to 1024, or auto");
  CHECK(value_problem("mesh.tp=auto") == "auto does not fit; expected an integer of at least 1");
}

TEST_CASE("a number takes decimal and exponent forms, not quotes", "[quick][config]") {
  CHECK(load_small({"optimizer.learning_rate=1e-4"}).optimizer.learning_rate == 1e-4);
  CHECK(load_small({"optimizer.learning_rate=1.0e-5"}).optimizer.learning_rate == 1e-5);
  CHECK(load_small({"optimizer.learning_rate=1.E+2"}).optimizer.learning_rate == 100);
  CHECK(load_small({"optimizer.learning_rate=.5"}).optimizer.learning_rate == 0.5);
  CHECK(load_small({"optimizer.learning_rate=2"}).optimizer.learning_rate == 2);
  CHECK(load_small({"optimizer.learning_rate=0"}).optimizer.learning_rate == 0);
  CHECK(value_problem("optimizer.learning_rate=\"1e-3\"") == "\"1e-3\" is text; write 1e-3 without quotes");
  CHECK(value_problem("optimizer.learning_rate=fast") == "fast does not fit; expected a number of at least 0");
  CHECK(value_problem("optimizer.learning_rate=inf") == "inf does not fit; expected a number of at least 0");
  CHECK(value_problem("optimizer.learning_rate=.inf") == ".inf is out of range; expected a number of at least 0");
  CHECK(value_problem("optimizer.learning_rate=1e999") == "1e999 does not fit; expected a number of at least 0");
  CHECK(value_problem("optimizer.learning_rate=1e-3x") == "1e-3x does not fit; expected a number of at least 0");
  CHECK(value_problem("optimizer.learning_rate=--1") == "--1 does not fit; expected a number of at least 0");
  CHECK(value_problem("model.dropout=1.0") == "1.0 is out of range; expected a number from 0 to below 1");
  CHECK(value_problem("optimizer.epsilon=0") == "0 is out of range; expected a number above 0");
  CHECK(value_problem("optimizer.betas=[0.9, 1]") == "1 is out of range; expected two numbers from 0 to below 1");
  CHECK(value_problem("optimizer.betas=[0.9]") == "expects two numbers from 0 to below 1; found a list");
}

TEST_CASE("clipping is off at 0 and infinity, and refused when negative or not a number", "[quick][config][B53]") {
  CHECK(load_small().optimizer.clip_grad_norm == 1.0);
  CHECK(load_small().optimizer.clips());
  CHECK_FALSE(load_small({"optimizer.clip_grad_norm=0"}).optimizer.clips());
  CHECK_FALSE(load_small({"optimizer.clip_grad_norm=.inf"}).optimizer.clips());
  const std::string rest =
      " is out of range; expected a number of at least 0 or .inf; write 0 or .inf to switch clipping off";
  CHECK(value_problem("optimizer.clip_grad_norm=-1") == "-1" + rest);
  CHECK(value_problem("optimizer.clip_grad_norm=-.inf") == "-.inf" + rest);
  CHECK(value_problem("optimizer.clip_grad_norm=.nan") == ".nan" + rest);
}

TEST_CASE("a bucket is above nothing and at most a terabyte", "[quick][config]") {
  CHECK(load_small({"parallel.zero.bucket_mb=1048576"}).parallel.zero.bucket_mb == 1048576);
  CHECK(load_small({"parallel.zero.bucket_mb=1.0e-3"}).parallel.zero.bucket_mb == 1e-3);
  const std::string rest = " is out of range; expected a number above 0 to 1048576";
  CHECK(value_problem("parallel.zero.bucket_mb=0") == "0" + rest);
  CHECK(value_problem("parallel.zero.bucket_mb=1048576.5") == "1048576.5" + rest);
  CHECK(value_problem("parallel.zero.bucket_mb=1e300") == "1e300" + rest);
}

TEST_CASE("a boolean is true or false and nothing else", "[quick][config]") {
  CHECK(load_small({"model.qk_norm=true"}).model.qk_norm);
  CHECK_FALSE(load_small({"model.bias=false"}).model.bias);
  CHECK(value_problem("model.bias=\"true\"") == "\"true\" is text; write true without quotes");
  CHECK(value_problem("model.bias=yes") == "yes is not a boolean; write true");
  CHECK(value_problem("model.bias=off") == "off is not a boolean; write false");
  CHECK(value_problem("model.bias=True") == "True is not a boolean; write true");
  CHECK(value_problem("model.bias=0") == "0 is not a boolean; write false");
  CHECK(value_problem("model.bias=maybe") == "maybe does not fit; expected true or false");
  CHECK(value_problem("model.bias=") == "expects true or false; found nothing");
}

TEST_CASE("a choice is spelled as listed, and a slip of it is recognised", "[quick][config]") {
  CHECK(load_small({"model.activation=swiglu"}).model.activation == Activation::swiglu);
  CHECK(load_small({"model.activation=\"relu_squared\""}).model.activation == Activation::relu_squared);
  CHECK(load_small({"parallel.pipeline.schedule=gpipe"}).parallel.pipeline.schedule == PipelineSchedule::gpipe);
  CHECK(load_small().parallel.pipeline.schedule == PipelineSchedule::one_f_one_b);
  CHECK(value_problem("model.norm=layrnorm") ==
        "layrnorm is not one of the choices; did you mean layernorm? choose layernorm or rmsnorm");
  CHECK(value_problem("model.norm=batch") == "batch is not one of the choices; choose layernorm or rmsnorm");
  CHECK(value_problem("model.norm=[]") == "expects layernorm or rmsnorm; found a list");
}

TEST_CASE("text keys keep what they are given but a folder's name must be one", "[quick][config]") {
  CHECK(load_small({"run.name=2024"}).run.name == "2024");
  CHECK(load_small({"run.name=a b"}).run.name == "a b");
  const std::string rest = " does not fit; expected the name of a folder, without /";
  CHECK(value_problem("run.name=a/b") == "a/b" + rest);
  CHECK(value_problem("run.name=..") == ".." + rest);
  CHECK(value_problem("run.name=\"\"") == "\"\"" + rest);
  CHECK(value_problem("run.name=\"a\\nb\"") == "\"a\\nb\"" + rest);
  CHECK(value_problem("run.name=null") == "expects the name of a folder, without /; found null");
  CHECK(value_problem("run.dir=\"\"") == "\"\" does not fit; expected text");
}

TEST_CASE("the mesh order names each axis once", "[quick][config]") {
  using enum Axis;
  CHECK(load_small().mesh.order == std::array{tp, cp, ep, dp, pp});
  CHECK(load_small({"mesh.order=[dp, tp, pp, ep, cp]"}).mesh.order == std::array{dp, tp, pp, ep, cp});
  const std::string rest = "; expected a list of dp, tp, pp, ep and cp, each once";
  CHECK(value_problem("mesh.order=[dp, tp, pp, ep, dp]") == "dp stands twice" + rest);
  CHECK(value_problem("mesh.order=[dp, tp]") == "a list of 2 axes" + rest);
  CHECK(value_problem("mesh.order=[dp, tp, pp, ep, xp]") ==
        "xp is not one of the choices; did you mean dp? choose dp, tp, pp, ep or cp");
  CHECK(value_problem("mesh.order=tp") == "tp does not fit; expected a list of dp, tp, pp, ep and cp, each once");
}

TEST_CASE("training data is a path, or a list of paths with or without weights", "[quick][config][data]") {
  const auto train = [](const std::string& value) { return load_small({"data.train=" + value}).data.train; };
  CHECK(train("a.txt") == std::vector<DataSource>{{"a.txt", {}}});
  CHECK(train("[a.txt, 'b*']") == std::vector<DataSource>{{"a.txt", {}}, {"b*", {}}});
  CHECK(train("[{path: a, weight: 0.5}, {path: b, weight: 2}]") == std::vector<DataSource>{{"a", 0.5}, {"b", 2.0}});
  CHECK(train("[{path: a}, b]") == std::vector<DataSource>{{"a", {}}, {"b", {}}});
  CHECK(train("[{path: a, weight: 0}, {path: b, weight: 2}]")[0].weight == 0.0);

  CHECK(value_problem("data.train=[]") == "a list without entries; expected at least one path");
  CHECK(value_problem("data.train=\"\"") == "\"\" is empty; expected a path");
  CHECK(value_problem("data.train=[{weight: 1}]") == "keys without a path; expected {path, weight}");
  CHECK(value_problem("data.train=[{path: a, weight: -1}]") == "-1 is no weight; expected a number of at least 0");
  CHECK(value_problem("data.train=[{path: a, weight: \"1\"}]") ==
        "\"1\" is no weight; expected a number of at least 0");
  CHECK(value_problem("data.train=[{path: a, wieght: 1}]") == "wieght: unknown key; an entry has path and weight");
  CHECK(value_problem("data.train=[a, {path: b, weight: 1}]") ==
        "a list gives a weight to some paths only; give every path a weight, or none");
  CHECK(value_problem("data.train=[{path: a, weight: 0}]") == "a list has only weights of 0; one must be above 0");
}

TEST_CASE("validation is nothing, a fraction or data", "[quick][config][data]") {
  const auto validation = [](const std::string& value) {
    return load_small({"data.validation=" + value}).data.validation;
  };
  CHECK(validation("null") == Validation());
  CHECK(validation("0.01") == Validation(0.01));
  CHECK(validation("v.txt") == Validation(std::vector<DataSource>{{"v.txt", {}}}));
  CHECK(validation("\"0.01\"") == Validation(std::vector<DataSource>{{"0.01", {}}}));
  const std::string rest = " is no fraction; expected a number above 0 and below 1, or null for no validation";
  CHECK(value_problem("data.validation=0") == "0" + rest);
  CHECK(value_problem("data.validation=1.0") == "1.0" + rest);
  CHECK(value_problem("data.validation=.nan") == ".nan" + rest);
}

TEST_CASE("lists of steps hold integers and the timeline a first and a last step", "[quick][config]") {
  CHECK(load_small({"logging.weight_dump_steps=[0, 5]"}).logging.weight_dump_steps == std::vector<int64_t>{0, 5});
  CHECK(load_small({"logging.gradient_dump_steps=[]"}).logging.gradient_dump_steps.empty());
  CHECK(value_problem("logging.gradient_dump_steps=[0]") ==
        "0 is out of range; expected a list of integers of at least 1");
  CHECK(value_problem("logging.gradient_dump_steps=3") == "3 does not fit; expected a list of integers of at least 1");
  CHECK(value_problem("logging.gradient_dump_steps=[1e1]") == "1e1 is not written as an integer; write 10");
  CHECK_THAT(value_problem("logging.trace_steps=[12, 10]"),
             Catch::Contains("expects the first and the last step, such as [10, 12], or []"));
}

TEST_CASE("long and unprintable values are shown short and on one line", "[quick][config]") {
  CHECK(value_problem("train.steps=" + std::string(100, 'x')) ==
        std::string(60, 'x') + "... does not fit; expected an integer of at least 1");
  CHECK(value_problem("train.steps=\"\\x07\"") == "\"\\x07\" does not fit; expected an integer of at least 1");
}

}  // namespace
}  // namespace quintet::config
