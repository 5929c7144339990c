#pragma once

#include "coll/plan.h"
#include "engine/op.h"
#include "io/loop.h"
#include "reduce/kernels.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace ringcomm {

// The execution of one share of an operation on one loop: its plan, the memory it names, and how
// far each step has got. Channels move the bytes of sends and receives and report them here; copies
// and reductions between local buffers are done here, in bounded pieces. On its loop.
class Run {
 public:
  struct Setup {
    std::shared_ptr<Op> op;
    Plan plan;
    std::vector<Buffer> buffers;  // the share's part of each of the operation's buffers
    const ReduceKernel* kernel = nullptr;
    size_t elementSize = 1;
    int world = 1;
  };

  explicit Run(Setup setup);

  Op& op() const noexcept { return *setup_.op; }
  const std::shared_ptr<Op>& sharedOp() const noexcept { return setup_.op; }
  const Plan& plan() const noexcept { return setup_.plan; }
  const Step& step(uint32_t index) const noexcept { return setup_.plan.steps[index]; }
  size_t elementSize() const noexcept { return setup_.elementSize; }

  bool mayStart(uint32_t index) noexcept {
    started_ = started_ || setup_.op->mayStart();
    return started_ && prefix_ >= step(index).after;
  }
  // How much of a send's bytes exist already.
  uint64_t available(uint32_t index) const noexcept;
  uint64_t moved(uint32_t index) const noexcept { return moved_[index]; }
  std::byte* address(const Region& region) const noexcept {
    return bases_[region.buffer] + region.offset;
  }

  // `bytes` more of a send or a receive are through (whole elements for a reducing receive, whose
  // bytes lie in `received` and are added into place here).
  void advance(uint32_t index, uint64_t bytes) noexcept { moved_[index] += bytes; }
  void reduceReceived(uint32_t index, const std::byte* received, uint64_t bytes) noexcept;
  void complete(uint32_t index) noexcept;

  // Does up to `budget` bytes of local steps; true if there is more that can be done now.
  bool workLocally(uint64_t budget) noexcept;

  bool done() const noexcept { return prefix_ == setup_.plan.steps.size(); }
  // The first step that is not complete: what a run that is stuck waits for.
  uint32_t firstOpenStep() const noexcept { return prefix_; }
  bool completed(uint32_t index) const noexcept { return completed_[index]; }
  // Whether the step exchanges bytes with a peer, could go on and is not complete.
  bool waitsForPeer(uint32_t index) noexcept;
  // Grows whenever anything has moved on.
  uint64_t progress() const noexcept;

  Loop::TimerId timer{};

 private:
  bool localStep(uint32_t index, uint64_t& budget) noexcept;
  void finishReduction(const Step& step, std::byte* at, uint64_t bytes) noexcept;

  Setup setup_;
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<std::byte*> bases_;
  std::vector<uint64_t> moved_;
  std::vector<bool> completed_;
  std::vector<uint32_t> local_;  // indices of local steps, in order
  size_t nextLocal_ = 0;
  bool started_ = false;  // the operation's memory is free for it
  uint32_t prefix_ = 0;   // all steps below are complete
};

}  // namespace ringcomm
