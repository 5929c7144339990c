#pragma once

#include "sim.h"

#include <cstdint>
#include <cstring>
#include <vector>

// What the plans' tests compute with: elements whose sums show how they came about, and inputs.
namespace ringcomm::sim {

template <typename T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void store(uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

// Moved, never reduced.
inline const Element kByte = {1, nullptr, nullptr};

// dst op src is neither commutative nor associative: the result tells the order of all operands.
inline const Element kTrace = {8,
                               [](uint8_t* dst, const uint8_t* src) {
                                 store(dst,
                                       load<uint64_t>(dst) * 0x100000001b3 + load<uint64_t>(src));
                               },
                               [](uint8_t* dst) { store(dst, load<uint64_t>(dst) ^ 0x5555); }};

// `bytes` bytes that differ by `who` and by `what`.
inline Bytes randomBytes(int who, uint64_t what, uint64_t bytes) {
  Random random(static_cast<uint64_t>(who) * 1000003 + what * 7919 + 1);
  Bytes made(bytes);
  for (uint64_t i = 0; i < bytes; i += 8) {
    const uint64_t value = random.next();
    std::memcpy(&made[i], &value, std::min<uint64_t>(8, bytes - i));
  }
  return made;
}

// Vectors of kTrace elements: dst = dst op src, and the finish of all.
inline void accumulateAll(Bytes& dst, const Bytes& src) {
  for (uint64_t i = 0; i < dst.size(); i += 8) kTrace.accumulate(&dst[i], &src[i]);
}
inline void finishAll(Bytes& dst) {
  for (uint64_t i = 0; i < dst.size(); i += 8) kTrace.finish(&dst[i]);
}

// The two orders of a sum that plans document, of one vector a rank. A world of one has no sum.

// ((0 op 1) op 2) op ..
inline Bytes sumByRank(std::vector<Bytes> inputs) {
  Bytes sum = inputs[0];
  for (size_t rank = 1; rank < inputs.size(); ++rank) accumulateAll(sum, inputs[rank]);
  if (inputs.size() > 1) finishAll(sum);
  return sum;
}

// owner op ( .. op ((owner + 2) op (owner + 1)))
inline Bytes sumAroundTo(int owner, const std::vector<Bytes>& inputs) {
  const size_t world = inputs.size();
  Bytes sum = inputs[(static_cast<size_t>(owner) + 1) % world];
  for (size_t k = 2; k <= world; ++k) {
    Bytes own = inputs[(static_cast<size_t>(owner) + k) % world];
    accumulateAll(own, sum);
    sum = own;
  }
  if (world > 1) finishAll(sum);
  return sum;
}

}  // namespace ringcomm::sim
