#include "coll/algorithms.h"
#include "coll/steps.h"

namespace ringcomm {

// Ring: every block goes once around; for large blocks, and for blocks of very different sizes.
//
// At hop h rank r sends block r - h (at first its own, from kOwn) and receives block
// r - 1 - h into its place. Hops N - 1; a rank sends all blocks but that of its successor, to one
// neighbour. Bytes are passed on as they arrive (`follow`).
//
// Each place is written once, before it is read: no hazard. No deadlock: receives wait for nothing,
// a send of hop h only for bytes of hop h - 1. Empty blocks are left out on both sides.
Plan ringAllGather(const CollectiveSpec& spec) {
  Plan plan;
  const int world = spec.world;
  int32_t arrived = -1;  // the receive of the previous hop
  for (int hop = 0; hop < world - 1; ++hop) {
    const int outgoing = rankAt(spec.rank, -hop, world);
    if (bytesOf(spec, outgoing) > 0) {
      const Region src = hop == 0 ? Region{kOwn, 0} : blockRegion(outgoing);
      Step send = sendStep(rankAt(spec.rank, 1, world), src, bytesOf(spec, outgoing));
      send.follow = arrived;
      addStep(plan, send);
    }
    const int incoming = rankAt(spec.rank, -1 - hop, world);
    if (bytesOf(spec, incoming) > 0) {
      arrived = addStep(plan, recvStep(rankAt(spec.rank, -1, world), blockRegion(incoming),
                                       bytesOf(spec, incoming)));
    }
  }
  copyBlock(plan, {kOwn, 0}, blockRegion(spec.rank), bytesOf(spec, spec.rank));
  return plan;
}

// Direct: every rank sends its block to every other one; for small blocks.
//
// Hops 1; a rank sends N - 1 times its block: as many bytes as the ring when blocks are equal, but
// N - 1 streams arrive at one port at once, and the rank with the largest block sends the most.
//
// Nothing waits for anything but room in a stream, and nothing is written that is sent.
Plan directAllGather(const CollectiveSpec& spec) {
  Plan plan;
  for (int distance = 1; distance < spec.world; ++distance) {
    const int to = rankAt(spec.rank, distance, spec.world);
    if (bytesOf(spec, spec.rank) > 0) {
      addStep(plan, sendStep(to, {kOwn, 0}, bytesOf(spec, spec.rank)));
    }
    const int from = rankAt(spec.rank, -distance, spec.world);
    const uint64_t bytes = bytesOf(spec, from);
    if (bytes > 0) addStep(plan, recvStep(from, blockRegion(from), bytes));
  }
  copyBlock(plan, {kOwn, 0}, blockRegion(spec.rank), bytesOf(spec, spec.rank));
  return plan;
}

}  // namespace ringcomm
