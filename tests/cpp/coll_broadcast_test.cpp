#include "coll/select.h"
#include "coll_elements.h"

#include <doctest/doctest.h>

#include <string>

using namespace ringcomm;
using namespace ringcomm::sim;

namespace {

constexpr const char* kNames[] = {"chain", "tree"};

CollectiveSpec broadcastSpec(int world, int root, uint64_t count) {
  CollectiveSpec spec;
  spec.kind = Collective::kBroadcast;
  spec.world = world;
  spec.root = root;
  spec.count = count;
  return spec;
}

const Algorithm& named(const char* name) { return **findAlgorithm(Collective::kBroadcast, name); }

void checkRun(const char* algorithm, int world, int root, uint64_t count, uint64_t seed,
              uint64_t capacity) {
  Simulation simulation(world, kByte, seed, capacity);
  const Bytes sent = randomBytes(root, seed, count);
  // Twice: the second operation's bytes are right behind the first one's.
  for (int i = 0; i < 2; ++i) {
    std::vector<RankOp> ranks;
    for (Plan& plan : plansOf(named(algorithm), broadcastSpec(world, root, count))) {
      const bool isRoot = static_cast<int>(ranks.size()) == root;
      ranks.push_back({std::move(plan), {{}, isRoot ? sent : Bytes(count)}});
    }
    simulation.add(std::move(ranks));
  }
  CAPTURE(algorithm);
  CAPTURE(root);
  CAPTURE(count);
  REQUIRE(simulation.run() == "");
  for (int rank = 0; rank < world; ++rank) {
    REQUIRE(simulation.buffer(0, rank, kData) == sent);
    REQUIRE(simulation.buffer(1, rank, kData) == sent);
  }
}

int floorLog2(int n) {
  int log = 0;
  while ((n >> log) > 1) ++log;
  return log;
}

}  // namespace

TEST_CASE("broadcast: everybody has the root's bytes, for every root and any room") {
  uint64_t seed = 1;
  for (const char* algorithm : kNames) {
    for (int world = 1; world <= 17; ++world) {
      for (int root = 0; root < world; ++root) {
        for (const uint64_t count : {0, 1, 16, 129}) {
          for (const uint64_t capacity : {uint64_t{1}, uint64_t{50}, kUnbounded}) {
            checkRun(algorithm, world, root, count, seed++, capacity);
          }
        }
      }
    }
    checkRun(algorithm, 5, 2, 3 << 20, seed++, 300000);
  }
}

TEST_CASE("broadcast: hops, bytes and coverage are as described, beyond 4 GiB too") {
  for (int world = 1; world <= 17; ++world) {
    for (int root = 0; root < world; ++root) {
      const uint64_t bytes = (uint64_t{6} << 30) + 1;
      const Plans chain = plansOf(named("chain"), broadcastSpec(world, root, bytes));
      const Plans tree = plansOf(named("tree"), broadcastSpec(world, root, bytes));
      CAPTURE(world);
      CAPTURE(root);
      CHECK(hopsOf(chain) == world - 1);
      CHECK(hopsOf(tree) == floorLog2(world));
      const int rounds = world == 1 ? 0 : floorLog2(world - 1) + 1;
      CHECK(messagesSent(tree[static_cast<size_t>(root)]) == static_cast<size_t>(rounds));
      size_t messages[2] = {0, 0};
      for (int rank = 0; rank < world; ++rank) {
        const auto i = static_cast<size_t>(rank);
        CHECK(messagesSent(chain[i]) == (rank == (root + world - 1) % world ? 0 : 1));
        messages[0] += messagesSent(chain[i]);
        messages[1] += messagesSent(tree[i]);
        for (const Plan& plan : {chain[i], tree[i]}) {
          CHECK(checkPlan(plan, rank, world, {0, bytes}, 1) == "");
          CHECK(bytesSent(plan) == messagesSent(plan) * bytes);
          CHECK(writesEachByteOnce(plan, kData, rank == root ? 0 : bytes));
        }
      }
      CHECK(messages[0] == static_cast<size_t>(world) - 1);
      CHECK(messages[1] == static_cast<size_t>(world) - 1);
    }
  }
}
