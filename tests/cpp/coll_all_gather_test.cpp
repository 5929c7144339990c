#include "coll/select.h"
#include "coll_elements.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>

using namespace ringcomm;
using namespace ringcomm::sim;

namespace {

constexpr const char* kNames[] = {"ring", "direct"};

CollectiveSpec allGatherSpec(std::vector<uint64_t> blockBytes) {
  CollectiveSpec spec;
  spec.kind = Collective::kAllGather;
  spec.world = static_cast<int>(blockBytes.size());
  spec.blockBytes = std::move(blockBytes);
  return spec;
}

const Algorithm& named(const char* name) { return **findAlgorithm(Collective::kAllGather, name); }

Bytes input(int rank, uint64_t bytes) { return randomBytes(rank, 77, bytes); }

std::vector<RankOp> operation(const Algorithm& algorithm, const CollectiveSpec& spec) {
  std::vector<RankOp> ranks;
  for (Plan& plan : plansOf(algorithm, spec)) {
    const size_t rank = ranks.size();
    std::vector<Bytes> buffers(kBlocks);
    buffers[kOwn] = input(static_cast<int>(rank), spec.blockBytes[rank]);
    for (const uint64_t bytes : spec.blockBytes) buffers.emplace_back(bytes);
    ranks.push_back({std::move(plan), std::move(buffers)});
  }
  return ranks;
}

void checkBlockss(const Simulation& simulation, size_t op, const std::vector<uint64_t>& blocks) {
  const auto world = static_cast<int>(blocks.size());
  for (int rank = 0; rank < world; ++rank) {
    for (int from = 0; from < world; ++from) {
      const auto index = static_cast<uint16_t>(kBlocks + from);
      REQUIRE(simulation.buffer(op, rank, index) == input(from, blocks[static_cast<size_t>(from)]));
    }
  }
}

// All alike, none, only one rank with anything, and sizes from 0 up in no order.
std::vector<std::vector<uint64_t>> shapesFor(int world) {
  const auto n = static_cast<size_t>(world);
  std::vector<std::vector<uint64_t>> shapes = {
      std::vector<uint64_t>(n, 0), std::vector<uint64_t>(n, 1), std::vector<uint64_t>(n, 67)};
  shapes.emplace_back(n, 0);
  shapes.back()[n / 2] = 33;
  shapes.emplace_back(n);
  for (size_t i = 0; i < n; ++i) shapes.back()[i] = (i * 7) % 5 * 31;
  return shapes;
}

}  // namespace

TEST_CASE("all_gather: every block everywhere, of any sizes, for any room") {
  uint64_t seed = 1;
  for (const char* algorithm : kNames) {
    for (int world = 1; world <= 17; ++world) {
      for (const std::vector<uint64_t>& blocks : shapesFor(world)) {
        for (const uint64_t capacity : {uint64_t{1}, uint64_t{40}, kUnbounded}) {
          Simulation simulation(world, kByte, seed++, capacity);
          simulation.add(operation(named(algorithm), allGatherSpec(blocks)));
          simulation.add(operation(named(algorithm), allGatherSpec(blocks)));
          CAPTURE(algorithm);
          CAPTURE(blocks);
          REQUIRE(simulation.run() == "");
          checkBlockss(simulation, 0, blocks);
          checkBlockss(simulation, 1, blocks);
        }
      }
    }
    const std::vector<uint64_t> large = {(4 << 20) + 5, 3, (2 << 20) + 1, 0};  // several pieces
    Simulation simulation(4, kByte, seed++, 300000);
    simulation.add(operation(named(algorithm), allGatherSpec(large)));
    REQUIRE(simulation.run() == "");
    checkBlockss(simulation, 0, large);
  }
}

TEST_CASE("all_gather: hops, bytes and coverage are as described, beyond 4 GiB too") {
  for (int world = 1; world <= 17; ++world) {
    const auto n = static_cast<size_t>(world);
    std::vector<uint64_t> blocks(n);
    for (size_t i = 0; i < n; ++i) blocks[i] = (uint64_t{5} << 30) + i * 12345;
    const uint64_t total = std::accumulate(blocks.begin(), blocks.end(), uint64_t{0});
    const Plans ring = plansOf(named("ring"), allGatherSpec(blocks));
    const Plans direct = plansOf(named("direct"), allGatherSpec(blocks));
    CAPTURE(world);
    CHECK(hopsOf(ring) == world - 1);
    CHECK(hopsOf(direct) == (world == 1 ? 0 : 1));
    std::vector<uint64_t> sizes(kBlocks, 0);
    sizes.insert(sizes.end(), blocks.begin(), blocks.end());
    for (size_t i = 0; i < n; ++i) {
      sizes[kOwn] = blocks[i];
      CHECK(bytesSent(ring[i]) == total - blocks[(i + 1) % n]);
      CHECK(bytesSent(direct[i]) == (n - 1) * blocks[i]);
      for (const Plan& plan : {ring[i], direct[i]}) {
        CHECK(checkPlan(plan, static_cast<int>(i), world, sizes, 1) == "");
        for (size_t from = 0; from < n; ++from) {
          CHECK(writesEachByteOnce(plan, static_cast<uint16_t>(kBlocks + from), blocks[from]));
        }
      }
    }
  }
}

TEST_CASE("all_gather: empty blocks have neither messages nor copies") {
  for (const char* algorithm : kNames) {
    for (const Plan& plan : plansOf(named(algorithm), allGatherSpec({0, 5, 0, 9}))) {
      for (const Step& step : plan.steps) CHECK(step.bytes > 0);
    }
    const Plans alone = plansOf(named(algorithm), allGatherSpec({5}));
    REQUIRE(alone[0].steps.size() == 1);
    CHECK(alone[0].steps[0].kind == StepKind::kCopy);
  }
}
