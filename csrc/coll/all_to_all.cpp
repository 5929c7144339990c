#include "coll/algorithms.h"
#include "coll/steps.h"

namespace ringcomm {

// Direct: every rank sends every other one its part.
//
// Hops 1; a rank sends what it has for others, the least that is possible. All streams run at once;
// each rank begins with its successor, so that while rates are alike, as many bytes go into each
// port as come out.
//
// Nothing waits for anything but room in a stream, and nothing is written that is sent. Empty parts
// are left out on both sides; what stays is copied. A pair's two ranks know its sizes and nobody
// else has to, which is why the choice of an algorithm cannot depend on sizes here.
Plan directAllToAll(const CollectiveSpec& spec) {
  Plan plan;
  const auto input = [](int to) { return Region{static_cast<uint16_t>(kInput + to), 0}; };
  const auto output = [&spec](int from) {
    return Region{static_cast<uint16_t>(kInput + spec.world + from), 0};
  };
  for (int distance = 1; distance < spec.world; ++distance) {
    const int to = rankAt(spec.rank, distance, spec.world);
    const uint64_t outgoing = spec.sendBytes[static_cast<size_t>(to)];
    if (outgoing > 0) addStep(plan, sendStep(to, input(to), outgoing));
    const int from = rankAt(spec.rank, -distance, spec.world);
    const uint64_t incoming = spec.recvBytes[static_cast<size_t>(from)];
    if (incoming > 0) addStep(plan, recvStep(from, output(from), incoming));
  }
  copyBlock(plan, input(spec.rank), output(spec.rank),
            spec.sendBytes[static_cast<size_t>(spec.rank)]);
  return plan;
}

}  // namespace ringcomm
