// Documents that do not see each other, on one rank and on many.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "lib/base/random.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training_run.h"

namespace quintet::testing {
namespace {

using Overrides = std::vector<std::string>;

const Overrides kThin = {"train.steps=2", "train.eval_steps=1", "model.hidden_size=32", "model.layers=2"};
// The corpus has a full stop behind every ninth word or so.
const Overrides kMasked = {"data.end_of_document=46", "data.document_mask=true", "data.mask_end_of_document=true"};

// Documents of `length` bytes each, of which the last one is '%'.
std::string even_documents(int64_t count, int64_t length) {
  std::string text;
  for (int64_t i = 0; i < count * length; ++i) {
    const auto letter = static_cast<char>('a' + philox(3, static_cast<uint64_t>(i), 0)[0] % 20);
    text.push_back((i + 1) % length == 0 ? '%' : letter);
  }
  return text;
}

void require_equal_to_one_rank(const Overrides& overrides, const std::vector<Sizes>& meshes) {
  References references;
  for (const Sizes& sizes : meshes)
    for (const char* method : {"ring", "all_gather", "ulysses"})
      for (const char* balance : {"zigzag", "none"}) {
        INFO(sizes.text() << ", " << method << ", " << balance);
        const Overrides all = with(overrides, {fmt::format("parallel.context.method={}", method),
                                               fmt::format("parallel.context.balance={}", balance)});
        require_equal_training(train(all, sizes), references.of(all), 1e-10);
      }
}

}  // namespace

TEST_CASE("documents masked from each other train as sequences of their own", "[quick][layouts][documents]") {
  const TemporaryFolder folder;
  const std::string text = folder.write("text.txt", even_documents(400, 16));
  const Overrides base = with(kThin, {"data.shuffle=false", "model.position=rope", "model.dropout=0.1"});
  const Run alone = train_on(text, with(base, {"model.seq_length=16", "train.global_batch_size=8"}));
  const Overrides joined = with(base, {"model.seq_length=32", "train.global_batch_size=4", "data.end_of_document=37"});
  const Overrides masked = with(joined, {"data.document_mask=true"});
  require_equal_training(train_on(text, masked), alone, 1e-10);
  for (const char* method : {"ring", "all_gather", "ulysses"})
    require_equal_training(
        train_on(text, with(masked, {"mesh.cp=2", fmt::format("parallel.context.method={}", method)}), 2), alone,
        1e-10);
  REQUIRE(train_on(text, joined).losses.front() != Approx(alone.losses.front()).epsilon(1e-6));
}

TEST_CASE("masked documents train on every mesh as on one rank", "[quick][layouts][documents]") {
  for (const char* position : {"model.position=learned", "model.position=rope"})
    require_equal_to_one_rank(with(with(kThin, kMasked), {position, "train.micro_batch_size=2"}),
                              {{.cp = 2}, {.cp = 4}, {.dp = 2, .tp = 2, .cp = 2}});
  require_equal_to_one_rank(with(kThin, {"data.end_of_document=46", "data.document_mask=true", "model.kv_heads=1"}),
                            {{.cp = 4}, {.tp = 2, .pp = 2}});
}

TEST_CASE("ranks count the tokens of their own that count", "[quick][layouts][documents]") {
  const Overrides base = with(kThin, {"data.end_of_document=46", "data.mask_end_of_document=true"});
  const Run one = train(base);
  REQUIRE(one.counted.front() < 8 * 32);
  REQUIRE(one.counted.front() > 7 * 32);
  for (const Sizes& sizes : {Sizes{.dp = 4}, Sizes{.cp = 4}, Sizes{.dp = 2, .tp = 2, .cp = 2}})
    require_equal_training(train(base, sizes), one, 1e-10);
}

TEST_CASE("where nothing counts the loss is 0 and weights stay finite", "[quick][documents]") {
  const TemporaryFolder folder;
  const std::string text = folder.write("text.txt", std::string(4000, '%'));
  const Run run = train_on(text,
                           with(kThin, {"data.end_of_document=37", "data.document_mask=true",
                                        "data.mask_end_of_document=true", "mesh.cp=2"}),
                           2);
  REQUIRE(run.counted == std::vector<int64_t>{0, 0});
  REQUIRE(run.losses == std::vector<double>{0, 0});
  REQUIRE(run.norms == std::vector<double>{0, 0});
  REQUIRE(run.validation_loss == 0);
}

}  // namespace quintet::testing
