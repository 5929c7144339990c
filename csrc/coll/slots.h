#pragma once

#include "coll/steps.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringcomm {

// kScratch as a few slots that partial sums pass through on their way to the next rank, so that the
// memory is bounded however long the vector is. Slots are taken in turn. Each is taken by a receive
// and left by the send that follows it, and the next receive into it waits (`after`) until that
// send is complete.
//
// With kCount slots a receive waits for the send of what came kCount receives before it. Whoever
// uses this has to show that these waits form no circle.
class Slots {
 public:
  // One to be written, one to be sent, and one more, so that neither has to wait for the other's
  // last bytes.
  static constexpr size_t kCount = 3;

  explicit Slots(uint64_t bytes) : bytes_((bytes + kLine - 1) / kLine * kLine) {}

  // Gives the receive its place. Its send has to be told before kCount more slots are taken.
  void take(Step& recv) {
    recv.dst = {kScratch, taken_ % kCount * bytes_};
    if (taken_ >= kCount) recv.after = sends_[taken_ - kCount] + 1;
    ++taken_;
  }
  // The index of the send that empties the slot taken first of those whose send was not told yet.
  void sentBy(int32_t send) { sends_.push_back(static_cast<uint32_t>(send)); }

  uint64_t scratchBytes() const { return std::min(taken_, kCount) * bytes_; }

 private:
  static constexpr uint64_t kLine = 64;  // slots share no cache line

  const uint64_t bytes_;
  size_t taken_ = 0;
  std::vector<uint32_t> sends_;
};

}  // namespace ringcomm
