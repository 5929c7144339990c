#pragma once

#include "coll/collective.h"
#include "coll/steps.h"

#include <cstdint>

namespace ringcomm {

// Reducing what all ranks sent at once, in rank order, whatever order it came in. The parts lie in
// kScratch side by side: N times `bytes`.

// Fills the slots: the other ranks' parts arrive, the own one is copied.
inline void gatherParts(Plan& plan, const CollectiveSpec& spec, Region own, uint64_t bytes) {
  const auto slot = [bytes](int rank) {
    return Region{kScratch, static_cast<uint64_t>(rank) * bytes};
  };
  for (int distance = 1; distance < spec.world; ++distance) {
    const int peer = rankAt(spec.rank, -distance, spec.world);
    addStep(plan, recvStep(peer, slot(peer), bytes));
  }
  addStep(plan, copyStep(own, slot(spec.rank), bytes));
  plan.scratchBytes = static_cast<uint64_t>(spec.world) * bytes;
}

// Combines the slots into `dst` once all of the plan's steps so far are complete.
inline void reduceParts(Plan& plan, const CollectiveSpec& spec, Region dst, uint64_t bytes) {
  Step reduce;
  reduce.kind = StepKind::kReduce;
  reduce.src = {kScratch, 0};
  reduce.dst = dst;
  reduce.bytes = bytes;
  reduce.parts = static_cast<uint32_t>(spec.world);
  reduce.after = stepsSoFar(plan);
  reduce.finish = true;
  addStep(plan, reduce);
}

}  // namespace ringcomm
