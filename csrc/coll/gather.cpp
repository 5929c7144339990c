#include "coll/algorithms.h"
#include "coll/steps.h"

namespace ringcomm {

// Direct: every rank sends its block to the root.
//
// Hops 1; a rank other than the root sends its block, and the root receives nothing that it does
// not keep. A tree would have fewer messages at the root, but more hops, more bytes, and every rank
// would have to know every block's size.
//
// Nothing waits for anything, and nothing is written that is sent. Empty blocks are left out on
// both sides; the root's own is copied.
Plan directGather(const CollectiveSpec& spec) {
  Plan plan;
  const uint64_t own = bytesOf(spec, spec.rank);
  if (spec.rank != spec.root) {
    if (own > 0) addStep(plan, sendStep(spec.root, {kOwn, 0}, own));
    return plan;
  }
  for (int distance = 1; distance < spec.world; ++distance) {
    const int from = rankAt(spec.rank, distance, spec.world);
    const uint64_t bytes = bytesOf(spec, from);
    if (bytes > 0) addStep(plan, recvStep(from, blockRegion(from), bytes));
  }
  copyBlock(plan, {kOwn, 0}, blockRegion(spec.rank), own);
  return plan;
}

// Direct: the root sends every rank its block; the mirror image of the gather, and for its reasons.
//
// Hops 1; the root sends all blocks but its own, the others nothing.
Plan directScatter(const CollectiveSpec& spec) {
  Plan plan;
  const uint64_t own = bytesOf(spec, spec.rank);
  if (spec.rank != spec.root) {
    if (own > 0) addStep(plan, recvStep(spec.root, {kOwn, 0}, own));
    return plan;
  }
  for (int distance = 1; distance < spec.world; ++distance) {
    const int to = rankAt(spec.rank, distance, spec.world);
    const uint64_t bytes = bytesOf(spec, to);
    if (bytes > 0) addStep(plan, sendStep(to, blockRegion(to), bytes));
  }
  copyBlock(plan, blockRegion(spec.rank), {kOwn, 0}, own);
  return plan;
}

}  // namespace ringcomm
