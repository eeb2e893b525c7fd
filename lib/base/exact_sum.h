// A sum of doubles that is exact until it is read, so that neither order nor partition can change a bit of it
// (a long fixed-point accumulator; Kulisch 2013, "Computer Arithmetic and Validity", chapter 8).
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace quintet {

class ExactSum {
 public:
  void add(double value);
  // The sum of all values; the same bits as adding them one by one.
  void add(std::span<const double> values);
  void add(std::span<const float> values);
  // Adds x * x, each square rounded to fp64 first (exact for fp32 values).
  void add_squares(std::span<const double> values);
  void add_squares(std::span<const float> values);
  void add(const ExactSum& other);

  // The sum, rounded once to nearest even. NaN if any value was NaN or both infinities came; else an infinity if one
  // came.
  double value() const;

  // As integers that add element by element: sums over ranks are integer sums of these words. normalise() first, so
  // that 2^30 ranks cannot overflow a word.
  static constexpr int kWords = 72;
  void normalise();
  std::span<int64_t, kWords> words() { return words_; }
  std::span<const int64_t, kWords> words() const { return words_; }

 private:
  // Word i weighs 2^(32 i - 1088) for i < kDigits; the last words count NaN, +inf and -inf.
  std::array<int64_t, kWords> words_{};
  int64_t pending_ = 0;  // additions since the last normalise()
};

}  // namespace quintet
