#pragma once

#include "coll/collective.h"
#include "coll/plan.h"

#include <cstddef>
#include <cstdint>

namespace ringcomm {

// How planners write steps down: the fields a kind has, and none of the others.

inline Step sendStep(int peer, Region src, uint64_t bytes) {
  Step step;
  step.kind = StepKind::kSend;
  step.peer = peer;
  step.src = src;
  step.bytes = bytes;
  return step;
}

inline Step recvStep(int peer, Region dst, uint64_t bytes) {
  Step step;
  step.kind = StepKind::kRecv;
  step.peer = peer;
  step.dst = dst;
  step.bytes = bytes;
  return step;
}

inline Step recvReduceStep(int peer, Region src, Region dst, uint64_t bytes) {
  Step step = recvStep(peer, dst, bytes);
  step.kind = StepKind::kRecvReduce;
  step.src = src;
  return step;
}

inline Step copyStep(Region src, Region dst, uint64_t bytes) {
  Step step;
  step.kind = StepKind::kCopy;
  step.src = src;
  step.dst = dst;
  step.bytes = bytes;
  return step;
}

// The bytes of a rank's block, and the block among those of all ranks.
inline uint64_t bytesOf(const CollectiveSpec& spec, int rank) {
  return spec.blockBytes[static_cast<size_t>(rank)];
}
inline Region blockRegion(int rank) { return {static_cast<uint16_t>(kBlocks + rank), 0}; }

// Appends a step; its index is what `follow` names.
inline int32_t addStep(Plan& plan, const Step& step) {
  plan.steps.push_back(step);
  return static_cast<int32_t>(plan.steps.size()) - 1;
}

// Appends the copy of what stays on this rank, if that is anything. Where the caller gave the same
// memory for both, it is one onto itself.
inline void copyBlock(Plan& plan, Region src, Region dst, uint64_t bytes) {
  if (bytes > 0) addStep(plan, copyStep(src, dst, bytes));
}

// The number of steps so far: the value of `after` for a step that waits for all of them.
inline uint32_t stepsSoFar(const Plan& plan) { return static_cast<uint32_t>(plan.steps.size()); }

// The rank `distance` places on (or back, if negative) around the ring.
inline int rankAt(int rank, int distance, int world) {
  const int place = (rank + distance) % world;
  return place < 0 ? place + world : place;
}

}  // namespace ringcomm
