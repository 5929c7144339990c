#include "coll/algorithms.h"
#include "coll/steps.h"

namespace ringcomm {
namespace {

// Places are ranks counted from the root: the root has place 0.
int rankOfPlace(const CollectiveSpec& spec, int place) {
  return rankAt(spec.root, place, spec.world);
}

int placeOf(const CollectiveSpec& spec) { return rankAt(spec.rank, -spec.root, spec.world); }

}  // namespace

// Chain: the root sends to the next rank, that one to its next, and so on; for large vectors.
//
// Hops N - 1; every rank but the last sends the vector once, the least that the root can. Each
// passes bytes on as they arrive (`follow`), so the time is that of the bytes plus N - 1 delays.
//
// A rank's only write is the arriving vector and its only send follows that: no hazard. No
// deadlock: receives wait for nothing, and the chain has no circle.
Plan chainBroadcast(const CollectiveSpec& spec) {
  Plan plan;
  const uint64_t bytes = spec.count * spec.elementSize;
  if (bytes == 0) return plan;
  const int place = placeOf(spec);
  int32_t arrived = -1;
  if (place > 0) {
    arrived = addStep(plan, recvStep(rankOfPlace(spec, place - 1), {kData, 0}, bytes));
  }
  if (place + 1 < spec.world) {
    Step send = sendStep(rankOfPlace(spec, place + 1), {kData, 0}, bytes);
    send.follow = arrived;
    addStep(plan, send);
  }
  return plan;
}

// Binomial tree, for small vectors.
//
// The parent of a place is the place without its lowest bit, so its children are the places that
// add one bit below it. Hops floor(log2 N); the root sends ceil(log2 N) times the vector, half of
// the ranks nothing. The child with the largest subtree is served first.
//
// Hazards and deadlock as for the chain: one write, followed by the sends; a tree has no circle.
Plan treeBroadcast(const CollectiveSpec& spec) {
  Plan plan;
  const uint64_t bytes = spec.count * spec.elementSize;
  if (bytes == 0) return plan;
  const int place = placeOf(spec);
  // The lowest bit of the place, for the root one beyond all places: children add a lower one.
  int below = 1;
  while (below < spec.world && place % (2 * below) == 0) below *= 2;
  int32_t arrived = -1;
  if (place > 0) {
    arrived = addStep(plan, recvStep(rankOfPlace(spec, place - below), {kData, 0}, bytes));
  }
  for (int bit = below / 2; bit > 0; bit /= 2) {
    if (place + bit >= spec.world) continue;
    Step send = sendStep(rankOfPlace(spec, place + bit), {kData, 0}, bytes);
    send.follow = arrived;
    addStep(plan, send);
  }
  return plan;
}

}  // namespace ringcomm
