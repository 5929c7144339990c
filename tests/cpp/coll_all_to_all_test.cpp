#include "coll/select.h"
#include "coll_elements.h"

#include <doctest/doctest.h>

using namespace ringcomm;
using namespace ringcomm::sim;

namespace {

// bytes[from][to]
using Sizes = std::vector<std::vector<uint64_t>>;

// Each rank knows what it sends and what it gets, and nothing of the others.
Plans directPlans(const Sizes& bytes) {
  std::vector<CollectiveSpec> specs;
  CollectiveSpec spec;
  spec.kind = Collective::kAllToAll;
  spec.world = static_cast<int>(bytes.size());
  for (spec.rank = 0; spec.rank < spec.world; ++spec.rank) {
    const auto self = static_cast<size_t>(spec.rank);
    spec.sendBytes = bytes[self];
    spec.recvBytes.clear();
    for (const auto& from : bytes) spec.recvBytes.push_back(from[self]);
    specs.push_back(spec);
  }
  return plansOf(**findAlgorithm(Collective::kAllToAll, "direct"), specs);
}

uint16_t inputIndex(size_t to) { return static_cast<uint16_t>(kInput + to); }
uint16_t outputIndex(size_t world, size_t from) {
  return static_cast<uint16_t>(kInput + world + from);
}

Bytes part(size_t from, size_t to, uint64_t bytes) {
  return randomBytes(static_cast<int>(from), to, bytes);
}

std::vector<RankOp> operation(const Sizes& bytes) {
  std::vector<RankOp> ranks;
  for (Plan& plan : directPlans(bytes)) {
    const size_t rank = ranks.size();
    std::vector<Bytes> buffers(1);
    for (size_t to = 0; to < bytes.size(); ++to) {
      buffers.push_back(part(rank, to, bytes[rank][to]));
    }
    for (const auto& from : bytes) buffers.emplace_back(from[rank]);
    ranks.push_back({std::move(plan), std::move(buffers)});
  }
  return ranks;
}

void checkResult(const Simulation& simulation, size_t op, const Sizes& bytes) {
  const size_t world = bytes.size();
  for (size_t rank = 0; rank < world; ++rank) {
    const auto self = static_cast<int>(rank);
    for (size_t peer = 0; peer < world; ++peer) {
      CAPTURE(rank);
      CAPTURE(peer);
      REQUIRE(simulation.buffer(op, self, inputIndex(peer)) == part(rank, peer, bytes[rank][peer]));
      REQUIRE(simulation.buffer(op, self, outputIndex(world, peer)) ==
              part(peer, rank, bytes[peer][rank]));
    }
  }
}

void checkRun(const Sizes& bytes, uint64_t seed, uint64_t capacity) {
  Simulation simulation(static_cast<int>(bytes.size()), kByte, seed, capacity);
  simulation.add(operation(bytes));
  simulation.add(operation(bytes));
  CAPTURE(bytes);
  REQUIRE(simulation.run() == "");
  checkResult(simulation, 0, bytes);
  checkResult(simulation, 1, bytes);
}

Sizes alike(int world, uint64_t bytes) {
  const auto n = static_cast<size_t>(world);
  return Sizes(n, std::vector<uint64_t>(n, bytes));
}

// All alike, none, one rank that sends and one that gets everything, and anything.
std::vector<Sizes> shapesFor(int world) {
  const auto n = static_cast<size_t>(world);
  std::vector<Sizes> shapes = {alike(world, 0), alike(world, 1), alike(world, 37),
                               alike(world, 0), alike(world, 0), alike(world, 0)};
  for (size_t i = 0; i < n; ++i) {
    shapes[3][n / 2][i] = 20 + i;
    shapes[4][i][n - 1] = 20 + i;
    for (size_t to = 0; to < n; ++to) shapes[5][i][to] = (i * 3 + to * 5) % 7 * 9;
  }
  return shapes;
}

}  // namespace

TEST_CASE("all_to_all: every part in its place, of any sizes, for any room") {
  uint64_t seed = 1;
  for (int world = 1; world <= 17; ++world) {
    for (const Sizes& bytes : shapesFor(world)) {
      for (const uint64_t capacity : {uint64_t{1}, uint64_t{40}, kUnbounded}) {
        checkRun(bytes, seed++, capacity);
      }
    }
  }
  checkRun({{0, 1 << 20, 5}, {700001, 3, 0}, {1, 300000, 90000}}, seed++, 100000);
}

TEST_CASE("all_to_all: hops, bytes and coverage are as described, beyond 4 GiB too") {
  for (int world = 1; world <= 17; ++world) {
    const auto n = static_cast<size_t>(world);
    Sizes bytes = alike(world, uint64_t{5} << 30);
    for (size_t i = 0; i < n; ++i) {
      for (size_t to = 0; to < n; ++to) bytes[i][to] += i * 1000 + to;
    }
    const Plans plans = directPlans(bytes);
    CAPTURE(world);
    CHECK(hopsOf(plans) == (world == 1 ? 0 : 1));
    for (size_t i = 0; i < n; ++i) {
      std::vector<uint64_t> sizes = {0};
      uint64_t total = 0;
      for (size_t to = 0; to < n; ++to) {
        sizes.push_back(bytes[i][to]);
        total += to == i ? 0 : bytes[i][to];
      }
      for (size_t from = 0; from < n; ++from) sizes.push_back(bytes[from][i]);
      CHECK(bytesSent(plans[i]) == total);
      CHECK(checkPlan(plans[i], static_cast<int>(i), world, sizes, 1) == "");
      for (size_t peer = 0; peer < n; ++peer) {
        CHECK(writesEachByteOnce(plans[i], inputIndex(peer), 0));
        CHECK(writesEachByteOnce(plans[i], outputIndex(n, peer), bytes[peer][i]));
      }
    }
  }
}

TEST_CASE("all_to_all: empty parts have neither messages nor copies") {
  for (const Plan& plan : directPlans({{0, 5, 0}, {0, 3, 7}, {0, 0, 0}})) {
    for (const Step& step : plan.steps) CHECK(step.bytes > 0);
  }
  CHECK(directPlans(alike(4, 0))[2].steps.empty());
}
