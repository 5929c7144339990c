#include "engine/run.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace ringcomm {

Run::Run(Setup setup)
    : setup_(std::move(setup)),
      moved_(setup_.plan.steps.size(), 0),
      completed_(setup_.plan.steps.size(), false) {
  if (setup_.plan.scratchBytes > 0) {
    scratch_.reset(new std::byte[setup_.plan.scratchBytes]);
  }
  bases_.reserve(setup_.buffers.size() + 1);
  bases_.push_back(scratch_.get());
  for (const Buffer& buffer : setup_.buffers) {
    bases_.push_back(buffer.data);
  }
  for (uint32_t i = 0; i < setup_.plan.steps.size(); ++i) {
    const StepKind kind = setup_.plan.steps[i].kind;
    if (kind == StepKind::kReduce || kind == StepKind::kCopy) {
      local_.push_back(i);
    }
  }
}

uint64_t Run::available(uint32_t index) const noexcept {
  const Step& send = step(index);
  return send.follow < 0 ? send.bytes : moved_[static_cast<uint32_t>(send.follow)];
}

void Run::reduceReceived(uint32_t index, const std::byte* received, uint64_t bytes) noexcept {
  const Step& receive = step(index);
  std::byte* at = address(receive.dst) + moved_[index];
  const std::byte* with = address(receive.src) + moved_[index];
  if (with == at) {
    setup_.kernel->accumulate(at, received, bytes / setup_.elementSize);
  } else {
    const void* parts[] = {with, received};
    setup_.kernel->combine(at, parts, 2, bytes / setup_.elementSize);
  }
  finishReduction(receive, at, bytes);
  moved_[index] += bytes;
}

void Run::finishReduction(const Step& step, std::byte* at, uint64_t bytes) noexcept {
  if (step.finish && setup_.kernel->divide != nullptr) {
    setup_.kernel->divide(at, bytes / setup_.elementSize, setup_.world);
  }
}

void Run::complete(uint32_t index) noexcept {
  completed_[index] = true;
  while (prefix_ < completed_.size() && completed_[prefix_]) {
    ++prefix_;
  }
}

bool Run::waitsForPeer(uint32_t index) noexcept {
  const StepKind kind = step(index).kind;
  return kind != StepKind::kCopy && kind != StepKind::kReduce && !completed_[index] &&
         mayStart(index);
}

uint64_t Run::progress() const noexcept {
  return std::accumulate(moved_.begin(), moved_.end(), uint64_t{prefix_});
}

bool Run::workLocally(uint64_t budget) noexcept {
  while (nextLocal_ < local_.size() && mayStart(local_[nextLocal_])) {
    if (budget == 0) {
      return true;
    }
    const uint32_t index = local_[nextLocal_];
    if (localStep(index, budget)) {
      ++nextLocal_;
      complete(index);
    }
  }
  return false;
}

// A piece of one local step; true when the step is complete.
bool Run::localStep(uint32_t index, uint64_t& budget) noexcept {
  const Step& local = step(index);
  uint64_t& done = moved_[index];
  // Whole elements, and never nothing.
  const uint64_t unit = setup_.elementSize;
  const uint64_t piece = std::min(local.bytes - done, std::max(budget / unit, uint64_t{1}) * unit);
  if (piece > 0) {
    std::byte* dst = address(local.dst) + done;
    if (local.kind == StepKind::kCopy) {
      const std::byte* src = address(local.src) + done;
      if (src != dst) {
        std::memcpy(dst, src, piece);
      }
    } else {
      std::vector<const void*> parts(local.parts);
      for (uint32_t part = 0; part < local.parts; ++part) {
        parts[part] = address(local.src) + part * local.bytes + done;
      }
      setup_.kernel->combine(dst, parts.data(), local.parts, piece / unit);
      finishReduction(local, dst, piece);
    }
  }
  done += piece;
  budget -= std::min(budget, std::max(piece, uint64_t{1}));
  return done == local.bytes;
}

}  // namespace ringcomm
