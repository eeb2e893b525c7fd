#include <catch2/catch.hpp>

#include <complex>

#include "lib/device/device.h"
#include "tests/support/arrays.h"
#include "tests/support/finite_difference.h"

using namespace quintet;
using namespace quintet::device;
using namespace quintet::testing;

namespace {

constexpr double kEpsilon = 1e-3;
constexpr int64_t kTable = 9;

// Heads of `width` channels at positions that repeat and jump.
template <typename T>
struct Heads {
  int64_t tokens, heads, width;
  bool norm, turn;
  Array<T> input, scale, cosine, sine, inverse_rms, output;
  Array<int32_t> positions;

  Heads(int64_t token_count, int64_t head_count, int64_t head_width, bool with_norm, bool with_turn)
      : tokens(token_count),
        heads(head_count),
        width(head_width),
        norm(with_norm),
        turn(with_turn),
        input(Array<T>::random({tokens, heads, width}, 1)),
        scale(Array<T>::random({width}, 2)),
        cosine({kTable, width / 2}),
        sine({kTable, width / 2}),
        inverse_rms({tokens, heads}),
        output({tokens, heads, width}),
        positions({tokens}) {
    for (int64_t t = 0; t < tokens; ++t) positions[t] = static_cast<int32_t>(t * 5 % kTable);
    for (int64_t i = 0; i < cosine.size(); ++i) {
      cosine[i] = static_cast<T>(std::cos(angle(i / (width / 2), i % (width / 2))));
      sine[i] = static_cast<T>(std::sin(angle(i / (width / 2), i % (width / 2))));
    }
  }

  double angle(int64_t position, int64_t channel) const {
    return static_cast<double>(position) *
           std::pow(100.0, -2.0 * static_cast<double>(channel) / static_cast<double>(width));
  }

  void forward(Device& device, Tensor to) {
    device.rope_norm_forward({.input = input,
                              .scale = norm ? scale.tensor() : Tensor(),
                              .epsilon = kEpsilon,
                              .cosine = turn ? cosine.tensor() : Tensor(),
                              .sine = turn ? sine.tensor() : Tensor(),
                              .positions = turn ? positions.tensor() : Tensor(),
                              .inverse_rms = norm ? inverse_rms.tensor() : Tensor(),
                              .output = to});
  }
};

}  // namespace

TEMPLATE_TEST_CASE("heads are normed, scaled and turned by their position", "[quick][ops][rope]", float, double) {
  using T = TestType;
  const auto device = make_cpu_device(2);
  for (const bool norm : {false, true}) {
    for (const bool turn : {false, true}) {
      for (const auto& shape : {Shape{1, 1, 2}, Shape{3, 2, 10}, Shape{7, 3, 64}, Shape{2, 5, 66}}) {
        const int64_t tokens = shape[0], count = shape[1], width = shape[2];
        Heads<T> heads(tokens, count, width, norm, turn);
        heads.forward(*device, heads.output);
        Array<double> expected({tokens, count, width});
        const int64_t half = width / 2;
        for (int64_t row = 0; row < tokens * count; ++row) {
          double squares = 0;
          for (int64_t c = 0; c < width; ++c) squares += std::pow(static_cast<double>(heads.input[row * width + c]), 2);
          const double inverse = 1 / std::sqrt(squares / static_cast<double>(width) + kEpsilon);
          const auto value = [&](int64_t c) {
            const double x = static_cast<double>(heads.input[row * width + c]);
            return norm ? x * inverse * static_cast<double>(heads.scale[c]) : x;
          };
          const int64_t position = heads.positions[row / count];
          for (int64_t i = 0; i < half; ++i) {
            const std::complex<double> turned =
                std::complex(value(i), value(i + half)) * std::polar(1.0, turn ? heads.angle(position, i) : 0.0);
            expected[row * width + i] = turned.real();
            expected[row * width + i + half] = turned.imag();
          }
        }
        CHECK(difference(heads.output, expected) < kRounding<T>);
        heads.forward(*device, heads.input);
        CHECK(same_bits(heads.input, heads.output));
      }
    }
  }
}

TEST_CASE("norm and rotation gradients are those of finite differences", "[quick][ops][rope]") {
  const auto device = make_cpu_device(2);
  for (const bool norm : {false, true}) {
    for (const bool turn : {false, true}) {
      Heads<double> heads(7, 3, 10, norm, turn);
      const auto d_output = Array<double>::random({7, 3, 10}, 5);
      auto gradient = d_output, scale_gradient = Array<double>::random({10}, 6);
      const auto before = scale_gradient;
      heads.forward(*device, heads.output);
      if (norm)
        device->rope_norm_backward_weight({.input = heads.input.tensor(),
                                           .cosine = turn ? heads.cosine.tensor() : Tensor(),
                                           .sine = turn ? heads.sine.tensor() : Tensor(),
                                           .positions = turn ? heads.positions.tensor() : Tensor(),
                                           .inverse_rms = heads.inverse_rms.tensor(),
                                           .d_output = gradient,
                                           .scale_gradient = scale_gradient.tensor()});
      device->rope_norm_backward_input({.input = norm ? heads.input.tensor() : Tensor(),
                                        .scale = norm ? heads.scale.tensor() : Tensor(),
                                        .cosine = turn ? heads.cosine.tensor() : Tensor(),
                                        .sine = turn ? heads.sine.tensor() : Tensor(),
                                        .positions = turn ? heads.positions.tensor() : Tensor(),
                                        .inverse_rms = norm ? heads.inverse_rms.tensor() : Tensor(),
                                        .d_output = gradient,
                                        .d_input = gradient});
      for (int64_t c = 0; c < 10; ++c) scale_gradient[c] -= before[c];
      const auto objective = [&] {
        heads.forward(*device, heads.output);
        return dot(heads.output, d_output);
      };
      CHECK(gradient_error(heads.input.span(), gradient.span(), objective) < 1e-8);
      if (norm) CHECK(gradient_error(heads.scale.span(), scale_gradient.span(), objective) < 1e-8);
    }
  }
}

TEST_CASE("odd heads and positions past the table are refused", "[quick][ops][rope]") {
  const auto device = make_cpu_device(1);
  Heads<float> odd(2, 1, 5, false, true);
  CHECK_THROWS_AS(odd.forward(*device, odd.output), CheckFailure);
  Heads<float> far(2, 1, 4, false, true);
  far.positions[1] = kTable;
  CHECK_THROWS_AS(far.forward(*device, far.output), CheckFailure);
}
