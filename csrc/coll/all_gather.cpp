#include "coll/algorithms.h"
#include "coll/pieces.h"
#include "coll/steps.h"

#include <algorithm>

namespace ringcomm {

// Ring: every block goes once around; for large blocks, and for blocks of very different sizes.
//
// At hop h rank r sends block r - h (at first its own, from kOwn) and receives block
// r - 1 - h into its place. Blocks are cut into pieces (pieces.h), and the ring goes around once a
// piece; shorter blocks leave the late rounds out, on both sides.
//
// Hops N - 1 a piece; a rank sends all blocks but that of its successor, to one neighbour. Bytes
// are passed on as they arrive (`follow`), so the time is that of the bytes and N - 1 delays.
//
// Each place is written once, before it is read: no hazard. No deadlock: receives wait for nothing,
// a send of hop h only for bytes of hop h - 1.
Plan ringAllGather(const CollectiveSpec& spec) {
  Plan plan;
  const int world = spec.world;
  const uint64_t longest = *std::max_element(spec.blockBytes.begin(), spec.blockBytes.end());
  for (uint64_t offset = 0; offset < longest; offset += kPieceBytes) {
    const auto lengthOf = [&](int rank) {
      return std::min(kPieceBytes, std::max(bytesOf(spec, rank), offset) - offset);
    };
    int32_t arrived = -1;  // the receive of the previous hop
    for (int hop = 0; hop < world - 1; ++hop) {
      const int outgoing = rankAt(spec.rank, -hop, world);
      if (lengthOf(outgoing) > 0) {
        const uint16_t from = hop == 0 ? uint16_t{kOwn} : blockRegion(outgoing).buffer;
        Step send = sendStep(rankAt(spec.rank, 1, world), {from, offset}, lengthOf(outgoing));
        send.follow = arrived;
        addStep(plan, send);
      }
      const int incoming = rankAt(spec.rank, -1 - hop, world);
      if (lengthOf(incoming) > 0) {
        arrived =
            addStep(plan, recvStep(rankAt(spec.rank, -1, world),
                                   {blockRegion(incoming).buffer, offset}, lengthOf(incoming)));
      }
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
