#include "coll/algorithms.h"
#include "coll/blocks.h"
#include "coll/parts.h"
#include "coll/pieces.h"
#include "coll/steps.h"

namespace ringcomm {
namespace {

// Twice around the ring with one window of the vector.
void ringWindow(const CollectiveSpec& spec, const Block& window, Plan& plan) {
  const int world = spec.world;
  const auto block = [&](int distance) {
    Block part = blockOf(window.bytes / spec.elementSize, spec.elementSize, world,
                         rankAt(spec.rank, distance, world));
    part.offset += window.offset;
    return part;
  };
  int32_t arrived = -1;  // the receive of the previous hop
  for (int hop = 0; hop < 2 * (world - 1); ++hop) {
    const Block out = block(-1 - hop);
    if (out.bytes > 0) {
      Step send = sendStep(rankAt(spec.rank, 1, world), {kData, out.offset}, out.bytes);
      send.follow = arrived;
      addStep(plan, send);
    }
    const Block in = block(-2 - hop);
    if (in.bytes > 0) {
      const Region place{kData, in.offset};
      const int from = rankAt(spec.rank, -1, world);
      Step recv = hop < world - 1 ? recvReduceStep(from, place, place, in.bytes)
                                  : recvStep(from, place, in.bytes);
      recv.finish = hop == world - 2;
      arrived = addStep(plan, recv);
    }
  }
}

}  // namespace

// Ring: reduce-scatter, then all-gather, in place; for large vectors.
//
// The vector is cut into windows, and each window into N blocks of a piece at most (pieces.h).
// Block b starts at rank b + 1 and goes once around: each rank adds its own part to what arrives
// and passes the sum on, until rank b holds the whole sum after N - 1 hops and finishes it (AVG
// divides here, once, before anybody else sees it). A second round of N - 1 hops hands the finished
// block to everybody. At hop h rank r sends block r - 1 - h and receives block r - 2 - h, in both
// rounds alike, so what it sends at hop h is always what it received at hop h - 1.
//
// Hops 2 (N - 1) a window; a rank sends 2 (N - 1) / N of the vector, the least that is possible,
// and to one neighbour only: no two streams ever compete for a port. The hops overlap byte by byte
// (`follow`), and the windows follow each other without a pause, so a vector whose pieces outlast
// the delay of a hop takes the time of its bytes and 2 (N - 1) delays.
//
// Same bits everywhere: a block is summed along one path by one sequence of additions, and all the
// other ranks receive copies of the result.
//
// In place without a hazard: byte i of block b is written again (second round) only when its final
// value arrives, which has been through the sum of rank b, which needed the byte i that this rank
// sent in the first round. So the old byte has left long before the new one can come.
//
// No deadlock: receives wait for nothing, so what was sent is always drained, whatever fits into
// the streams; a send of hop h waits only for bytes of hop h - 1, and those of hop 0 for nothing.
//
// Empty blocks (a vector of fewer than N units) are left out by sender and receiver, who compute
// the same blocks from the same count.
Plan ringAllReduce(const CollectiveSpec& spec) {
  Plan plan;
  const uint64_t most = kPieceBytes * static_cast<uint64_t>(spec.world);
  const uint64_t bytes = spec.count * spec.elementSize;
  const auto windows = static_cast<int>(bytes / most + (bytes % most != 0 ? 1 : 0));
  for (int window = 0; window < windows; ++window) {
    ringWindow(spec, blockOf(spec.count, spec.elementSize, windows, window), plan);
  }
  return plan;
}

// Direct: every rank sends its whole vector to every other one and reduces all N by itself; for
// small vectors, where the delay of a hop is all that counts.
//
// Hops 1; a rank sends (N - 1) times the vector, and holds N of them in scratch.
//
// Same bits everywhere: each rank combines the same N parts in rank order, its own from its slot
// like the others'.
//
// The result goes where the sends read from, so the reduction waits for the plan's steps before it:
// the arrivals and the sends. That wait cannot close a circle: it is this rank's alone, no send or
// receive waits for it, receives wait for nothing, and sends only for room that the peers' receives
// make.
//
// Peers are taken in the order of their distance, so that the ranks do not all begin with rank 0.
Plan directAllReduce(const CollectiveSpec& spec) {
  Plan plan;
  const uint64_t bytes = spec.count * spec.elementSize;
  if (spec.world == 1 || bytes == 0) return plan;
  for (int distance = 1; distance < spec.world; ++distance) {
    addStep(plan, sendStep(rankAt(spec.rank, distance, spec.world), {kData, 0}, bytes));
  }
  gatherParts(plan, spec, {kData, 0}, bytes);
  reduceParts(plan, spec, {kData, 0}, bytes);
  return plan;
}

// Scatter-gather: the ring's bytes in two hops; for the middle, where a vector is too long to send
// N - 1 times and too short to hide the ring's 2 (N - 1) delays.
//
// Rank p owns block p. First everybody sends block p to rank p (for all p); p combines the N parts
// in rank order and finishes them; then it sends the result to everybody.
//
// Hops 2; a rank sends (N - 1) / N of the vector in each, so 2 (N - 1) / N; scratch is one block a
// rank, together about the vector. Unlike the ring, N - 1 streams arrive at one port at once, and
// the sums read what has left the cache: above a size the ring is better.
//
// Same bits everywhere: one rank computes a block, the others receive copies.
//
// No hazard: rank p's result arrives in block p here only after p has received this rank's part of
// that block, whole. The reduction writes the own block, which no send of the first hop reads, so
// it waits for the arrivals alone: they come first in the plan, and the sends of the first hop
// after it, free to run at once.
//
// No deadlock: no receive waits for anything, so the first hop's sends always drain; the second
// hop's wait for the reduction, that for the first hop's arrivals. To each peer the order of the
// messages is first hop, second hop, on both sides.
//
// A rank whose block is empty receives no parts and sends no result.
Plan scatterGatherAllReduce(const CollectiveSpec& spec) {
  Plan plan;
  const int world = spec.world;
  if (world == 1) return plan;
  const auto block = [&](int rank) { return blockOf(spec.count, spec.elementSize, world, rank); };
  const Block own = block(spec.rank);
  if (own.bytes > 0) {
    gatherParts(plan, spec, {kData, own.offset}, own.bytes);
    reduceParts(plan, spec, {kData, own.offset}, own.bytes);
  }
  const uint32_t reduced = stepsSoFar(plan);
  for (int distance = 1; distance < world; ++distance) {
    const int peer = rankAt(spec.rank, distance, world);
    const Block theirs = block(peer);
    if (theirs.bytes > 0) addStep(plan, sendStep(peer, {kData, theirs.offset}, theirs.bytes));
  }
  for (int distance = 1; distance < world; ++distance) {
    const int to = rankAt(spec.rank, distance, world);
    if (own.bytes > 0) {
      Step send = sendStep(to, {kData, own.offset}, own.bytes);
      send.after = reduced;
      addStep(plan, send);
    }
    const int from = rankAt(spec.rank, -distance, world);
    const Block theirs = block(from);
    if (theirs.bytes > 0) addStep(plan, recvStep(from, {kData, theirs.offset}, theirs.bytes));
  }
  return plan;
}

}  // namespace ringcomm
