#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace ringcomm {

struct Block {
  uint64_t offset = 0;  // bytes
  uint64_t bytes = 0;
};

// Block `index` of `blocks` that a vector of `count` elements is cut into.
//
// The unit dealt out is the smallest run of whole elements that fills whole cache lines, so every
// block starts at a multiple of 64 bytes: no line is written by the reduction of one block and by
// the arrival of the next, and vector loads stay aligned where the tensor is. Units are dealt
// evenly (blocks differ by one unit at most), the longer blocks first; a vector of fewer units than
// blocks leaves the last ones empty.
inline Block blockOf(uint64_t count, size_t elementSize, int blocks, int index) {
  constexpr uint64_t kLine = 64;
  const uint64_t unit = kLine / std::gcd(kLine, uint64_t{elementSize});
  const uint64_t units = count / unit + (count % unit != 0 ? 1 : 0);
  const uint64_t each = units / static_cast<uint64_t>(blocks);
  const uint64_t longer = units % static_cast<uint64_t>(blocks);
  const auto start = [&](uint64_t i) {
    // Only the end of the vector can fall inside a unit.
    return std::min(count, (i * each + std::min(i, longer)) * unit);
  };
  const auto at = static_cast<uint64_t>(index);
  return {start(at) * elementSize, (start(at + 1) - start(at)) * elementSize};
}

}  // namespace ringcomm
