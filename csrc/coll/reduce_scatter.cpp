#include "coll/algorithms.h"
#include "coll/parts.h"
#include "coll/pieces.h"
#include "coll/slots.h"
#include "coll/steps.h"

#include <algorithm>

namespace ringcomm {
// Direct: every rank sends block p to rank p, which combines the N parts; for small blocks. It is
// the first half of scatter-gather all_reduce.
//
// Hops 1; a rank sends all blocks but its own. Scratch is N times the own block.
//
// Order: rank order. Nothing that is sent is written, and the reduction alone waits, for arrivals
// that wait for nothing. A rank whose block is empty receives no parts.
Plan directReduceScatter(const CollectiveSpec& spec) {
  Plan plan;
  const uint64_t own = bytesOf(spec, spec.rank);
  if (spec.world == 1) {
    copyBlock(plan, blockRegion(0), {kOwn, 0}, own);
    return plan;
  }
  if (own > 0) {
    gatherParts(plan, spec, blockRegion(spec.rank), own);
    reduceParts(plan, spec, {kOwn, 0}, own);
  }
  for (int distance = 1; distance < spec.world; ++distance) {
    const int to = rankAt(spec.rank, distance, spec.world);
    if (bytesOf(spec, to) > 0) addStep(plan, sendStep(to, blockRegion(to), bytesOf(spec, to)));
  }
  return plan;
}

// Ring: the first round of the ring all_reduce, out of place; for large blocks.
//
// Block b starts at rank b + 1 and goes once around: each rank adds its own part to what arrives
// and passes the sum on, until rank b adds the last part, finishes, and keeps it. At hop h rank r
// sends block r - 1 - h and receives block r - 2 - h, so it sends what it received at hop h - 1.
//
// Blocks are cut into pieces, and the ring goes around once a piece: all blocks' first pieces, then
// all blocks' second ones, and so on, without a pause between. Shorter blocks leave the late rounds
// out, on both sides. Within a hop bytes are passed on as they are summed (`follow`).
//
// Hops N - 1 a piece; a rank sends all blocks but its own, the least that is possible, and to one
// neighbour. With pieces that outlast a delay, the time is that of the bytes and N - 1 delays.
//
// No input is written: partial sums pass through slots of scratch, three pieces (6 MiB) or three of
// the largest block, whichever is less; between two ranks none, since every arrival is the last.
// The result goes straight to kOwn. That may be the own input block: no send reads it.
//
// Order: own op (sum of those behind), as in the ring all_reduce.
//
// No deadlock: number the hops of all pieces through, t = 0, 1, ..; what is sent at t is received
// at t. A receive into a slot waits for the send that emptied it: of what came three such receives
// before, at t - 3 or earlier, so sent at t - 2 or earlier; and for the steps before that. A send
// of t waits for its bytes, received at t - 1, for room that the next rank's receives make, up to
// t, and each of these waits only for what has a lower t. So no wait can come back to where it
// began. (Two slots would still do. With one, a receive of t would wait for the send of t.)
Plan ringReduceScatter(const CollectiveSpec& spec) {
  Plan plan;
  const int world = spec.world;
  if (world == 1) copyBlock(plan, blockRegion(0), {kOwn, 0}, bytesOf(spec, 0));
  const uint64_t longest = *std::max_element(spec.blockBytes.begin(), spec.blockBytes.end());
  Slots slots(std::min(kPieceBytes, longest));
  for (uint64_t offset = 0; world > 1 && offset < longest; offset += kPieceBytes) {
    const auto lengthOf = [&](int rank) {
      return std::min(kPieceBytes, std::max(bytesOf(spec, rank), offset) - offset);
    };
    int32_t arrived = -1;  // the receive of the previous hop
    for (int hop = 0; hop < world - 1; ++hop) {
      const int outgoing = rankAt(spec.rank, -1 - hop, world);
      if (lengthOf(outgoing) > 0) {
        Step send = sendStep(rankAt(spec.rank, 1, world), {blockRegion(outgoing).buffer, offset},
                             lengthOf(outgoing));
        if (hop > 0) send.src = plan.steps[static_cast<size_t>(arrived)].dst;
        send.follow = hop > 0 ? arrived : -1;
        const int32_t index = addStep(plan, send);
        if (hop > 0) slots.sentBy(index);
      }
      const int incoming = rankAt(spec.rank, -2 - hop, world);
      if (lengthOf(incoming) > 0) {
        const bool last = incoming == spec.rank;
        Step recv =
            recvReduceStep(rankAt(spec.rank, -1, world), {blockRegion(incoming).buffer, offset},
                           {kOwn, offset}, lengthOf(incoming));
        recv.finish = last;
        if (!last) slots.take(recv);
        arrived = addStep(plan, recv);
      }
    }
  }
  plan.scratchBytes = slots.scratchBytes();
  return plan;
}

}  // namespace ringcomm
