#include "coll/algorithms.h"
#include "coll/steps.h"

namespace ringcomm {

// Direct: an empty message to every other rank and one from each.
//
// Hops 1; N - 1 messages a rank. A rank is through when it has heard from all, and a rank speaks
// only once it has come: nobody leaves before everybody came. Nothing waits for anything here, so
// there is no circle.
Plan directBarrier(const CollectiveSpec& spec) {
  Plan plan;
  for (int distance = 1; distance < spec.world; ++distance) {
    addStep(plan, sendStep(rankAt(spec.rank, distance, spec.world), {}, 0));
    addStep(plan, recvStep(rankAt(spec.rank, -distance, spec.world), {}, 0));
  }
  return plan;
}

// Dissemination: in round k a rank sends an empty message to the rank 2^k places on and hears from
// the one 2^k places back; for worlds where N - 1 messages a rank cost more than the hops.
//
// Hops and messages a rank ceil(log2 N). The messages of round k are sent `after` round k - 1 is
// complete, so after k rounds a rank has heard, through others, of the 2^k - 1 ranks behind it, and
// in the end of all: nobody leaves before everybody came. The rounds cannot form a circle, since a
// message of a round waits for those of earlier rounds only.
Plan disseminationBarrier(const CollectiveSpec& spec) {
  Plan plan;
  for (int distance = 1; distance < spec.world; distance *= 2) {
    Step send = sendStep(rankAt(spec.rank, distance, spec.world), {}, 0);
    send.after = stepsSoFar(plan);
    addStep(plan, send);
    addStep(plan, recvStep(rankAt(spec.rank, -distance, spec.world), {}, 0));
  }
  return plan;
}

}  // namespace ringcomm
