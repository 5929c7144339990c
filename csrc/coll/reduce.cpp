#include "coll/algorithms.h"
#include "coll/parts.h"
#include "coll/slots.h"
#include "coll/steps.h"

#include <algorithm>

namespace ringcomm {
namespace {

// What a message of the chain carries: short, so that a partial sum is still in cache when it is
// sent on; several times what the pipeline forwards at once, so that the cut costs nothing.
constexpr uint64_t kChainPieceBytes = uint64_t{512} << 10;

}  // namespace

// Direct: every rank sends its vector to the root, which reduces all N; for small vectors.
//
// Hops 1; a rank other than the root sends the vector once. The root receives N - 1 of them, and
// holds N in scratch.
//
// Order: rank order. Nothing that is sent is written, and the reduction alone waits, for arrivals
// that wait for nothing.
Plan directReduce(const CollectiveSpec& spec) {
  Plan plan;
  const uint64_t bytes = spec.count * spec.elementSize;
  if (bytes == 0) return plan;
  if (spec.world == 1) {
    copyBlock(plan, {kInput, 0}, {kOutput, 0}, bytes);
  } else if (spec.rank == spec.root) {
    gatherParts(plan, spec, {kInput, 0}, bytes);
    reduceParts(plan, spec, {kOutput, 0}, bytes);
  } else {
    addStep(plan, sendStep(spec.root, {kInput, 0}, bytes));
  }
  return plan;
}

// Chain: the sum starts at the rank behind the root and goes once around to the root, each rank
// adding its own vector to what arrives; for large vectors.
//
// Hops N - 1; every rank but the root sends the vector once, and none receives it more than once:
// no plan has the root receive less. Bytes are passed on as soon as they are summed (`follow`), so
// the time is that of the bytes plus N - 1 delays. (A reduce-scatter and a gather of the blocks
// would carry 2 (N - 1) / N of the vector in and out of ranks.)
//
// Order: as a block of the ring all_reduce whose owner is the root: own op (sum of those behind).
//
// No input is written: partial sums pass through slots of scratch, three pieces however long the
// vector is, and stay in cache. The root's sums go to kOutput, byte by byte over the input where
// that is the same memory: neither is ever sent.
//
// No deadlock: before a rank lets piece k in, it waits only for its send of piece k - 3, and what
// precedes that; the root and the first rank wait for nothing. A send of piece k waits for the
// arrival of piece k here, hence for its sends by the ranks before, and for the next rank to let in
// piece k, hence for earlier pieces. Every wait is for an earlier piece, or for the same piece
// nearer to its start.
Plan chainReduce(const CollectiveSpec& spec) {
  Plan plan;
  const uint64_t bytes = spec.count * spec.elementSize;
  if (spec.world == 1) copyBlock(plan, {kInput, 0}, {kOutput, 0}, bytes);
  if (spec.world == 1) return plan;
  const int next = rankAt(spec.rank, 1, spec.world);
  const bool isRoot = spec.rank == spec.root;
  const bool isFirst = spec.rank == rankAt(spec.root, 1, spec.world);
  const uint64_t piece = kChainPieceBytes / spec.elementSize * spec.elementSize;
  Slots slots(std::min(piece, bytes));
  for (uint64_t offset = 0; offset < bytes; offset += piece) {
    const Region own{kInput, offset};
    const uint64_t length = std::min(piece, bytes - offset);
    if (isFirst) {
      addStep(plan, sendStep(next, own, length));
      continue;
    }
    Step recv = recvReduceStep(rankAt(spec.rank, -1, spec.world), own, {kOutput, offset}, length);
    recv.finish = isRoot;
    if (!isRoot) slots.take(recv);
    const int32_t arrived = addStep(plan, recv);
    if (isRoot) continue;
    Step send = sendStep(next, recv.dst, length);
    send.follow = arrived;
    slots.sentBy(addStep(plan, send));
  }
  plan.scratchBytes = slots.scratchBytes();
  return plan;
}

}  // namespace ringcomm
