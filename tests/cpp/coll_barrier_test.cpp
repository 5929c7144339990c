#include "coll/select.h"
#include "sim.h"

#include <doctest/doctest.h>

#include <string>

using namespace ringcomm;
using namespace ringcomm::sim;

namespace {

constexpr const char* kNames[] = {"direct", "dissemination"};

const Element kByte = {1, nullptr, nullptr};

Plans barrierPlans(const char* name, int world) {
  CollectiveSpec spec;
  spec.world = world;
  return plansOf(**findAlgorithm(Collective::kBarrier, name), spec);
}

std::vector<RankOp> operation(const char* name, int world) {
  std::vector<RankOp> ranks;
  for (Plan& plan : barrierPlans(name, world)) ranks.push_back({std::move(plan), {{}, {}}});
  return ranks;
}

}  // namespace

TEST_CASE("barrier: nobody leaves before everybody came, and then everybody does") {
  uint64_t seed = 1;
  for (const char* algorithm : kNames) {
    for (int world = 2; world <= 17; ++world) {
      for (int late = 0; late < world; ++late) {
        const uint64_t capacity = late % 2 == 0 ? 1 : kUnbounded;
        Simulation simulation(world, kByte, seed++, capacity);
        const size_t first = simulation.add(operation(algorithm, world));
        const size_t second = simulation.add(operation(algorithm, world));
        CAPTURE(algorithm);
        CAPTURE(world);
        CAPTURE(late);
        simulation.hold(late, true);
        REQUIRE(simulation.run() == "");
        for (int rank = 0; rank < world; ++rank) REQUIRE(!simulation.complete(first, rank));
        simulation.hold(late, false);
        REQUIRE(simulation.run() == "");
        for (int rank = 0; rank < world; ++rank) REQUIRE(simulation.complete(second, rank));
      }
    }
  }
}

TEST_CASE("barrier: hops and messages are as described") {
  for (int world = 1; world <= 17; ++world) {
    int rounds = 0;
    while ((1 << rounds) < world) ++rounds;
    const Plans direct = barrierPlans("direct", world);
    const Plans rounded = barrierPlans("dissemination", world);
    CAPTURE(world);
    CHECK(hopsOf(direct) == (world == 1 ? 0 : 1));
    CHECK(hopsOf(rounded) == rounds);
    for (int rank = 0; rank < world; ++rank) {
      const auto i = static_cast<size_t>(rank);
      CHECK(messagesSent(direct[i]) == static_cast<size_t>(world) - 1);
      CHECK(messagesSent(rounded[i]) == static_cast<size_t>(rounds));
      CHECK(checkPlan(direct[i], rank, world, {0, 0}, 1) == "");
      CHECK(checkPlan(rounded[i], rank, world, {0, 0}, 1) == "");
    }
  }
}
