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
constexpr uint64_t kPiece = uint64_t{2} << 20;

using Blocks = std::vector<uint64_t>;  // bytes, by rank

CollectiveSpec reduceScatterSpec(const Blocks& blocks) {
  CollectiveSpec spec;
  spec.kind = Collective::kReduceScatter;
  spec.world = static_cast<int>(blocks.size());
  spec.elementSize = 8;
  spec.blockBytes = blocks;
  return spec;
}

const Algorithm& named(const char* name) {
  return **findAlgorithm(Collective::kReduceScatter, name);
}

Bytes part(int from, size_t to, uint64_t bytes) { return randomBytes(from, to, bytes); }

uint16_t blockIndex(size_t rank) { return static_cast<uint16_t>(kBlocks + rank); }

// In place: the result is the own part's memory.
std::vector<RankOp> operation(const char* algorithm, const Blocks& blocks, bool inPlace) {
  std::vector<RankOp> ranks;
  for (Plan& plan : plansOf(named(algorithm), reduceScatterSpec(blocks))) {
    const size_t rank = ranks.size();
    std::vector<Bytes> buffers = {{}, Bytes(inPlace ? 0 : blocks[rank])};
    for (size_t to = 0; to < blocks.size(); ++to) {
      buffers.push_back(part(static_cast<int>(rank), to, blocks[to]));
    }
    for (Step& step : plan.steps) {
      if (inPlace && step.dst.buffer == kOwn) step.dst.buffer = blockIndex(rank);
    }
    ranks.push_back({std::move(plan), std::move(buffers)});
  }
  return ranks;
}

void checkResult(const Simulation& simulation, size_t op, const std::string& algorithm,
                 const Blocks& blocks, bool inPlace) {
  for (size_t rank = 0; rank < blocks.size(); ++rank) {
    CAPTURE(rank);
    const auto self = static_cast<int>(rank);
    std::vector<Bytes> parts;
    for (size_t from = 0; from < blocks.size(); ++from) {
      parts.push_back(part(static_cast<int>(from), rank, blocks[rank]));
    }
    const Bytes sum = algorithm == "ring" ? sumAroundTo(self, parts) : sumByRank(parts);
    REQUIRE(simulation.buffer(op, self, inPlace ? blockIndex(rank) : uint16_t{kOwn}) == sum);
    for (size_t to = 0; to < blocks.size(); ++to) {
      if (inPlace && to == rank) continue;
      REQUIRE(simulation.buffer(op, self, blockIndex(to)) == part(self, to, blocks[to]));
    }
  }
}

void checkRun(const char* algorithm, const Blocks& blocks, uint64_t seed, uint64_t capacity) {
  Simulation simulation(static_cast<int>(blocks.size()), kTrace, seed, capacity);
  simulation.add(operation(algorithm, blocks, false));
  simulation.add(operation(algorithm, blocks, true));
  CAPTURE(algorithm);
  CAPTURE(blocks);
  REQUIRE(simulation.run() == "");
  checkResult(simulation, 0, algorithm, blocks, false);
  checkResult(simulation, 1, algorithm, blocks, true);
}

// All alike, none, only one rank with anything, and sizes from 0 up in no order.
std::vector<Blocks> shapesFor(int world) {
  const auto n = static_cast<size_t>(world);
  std::vector<Blocks> shapes = {Blocks(n, 0), Blocks(n, 8), Blocks(n, 72), Blocks(n, 0), Blocks(n)};
  shapes[3][n / 2] = 40;
  for (size_t i = 0; i < n; ++i) shapes[4][i] = (i * 7) % 5 * 24;
  return shapes;
}

}  // namespace

TEST_CASE("reduce_scatter: sums in the documented order, of any sizes, for any room") {
  uint64_t seed = 1;
  for (const char* algorithm : kNames) {
    for (int world = 1; world <= 17; ++world) {
      for (const Blocks& blocks : shapesFor(world)) {
        for (const uint64_t capacity : {uint64_t{1}, uint64_t{100}, kUnbounded}) {
          checkRun(algorithm, blocks, seed++, capacity);
        }
      }
    }
  }
}

TEST_CASE("reduce_scatter: blocks of several pieces, alike and very different") {
  uint64_t seed = 1;
  for (const char* algorithm : kNames) {
    checkRun(algorithm, Blocks(2, kPiece + 8), seed++, 300000);
    checkRun(algorithm, Blocks(3, kPiece + 4096), seed++, 1 << 20);
    checkRun(algorithm, {8, 2 * kPiece + 16, 0, kPiece, 24}, seed++, 100000);
    checkRun(algorithm, {0, 0, 0, 2 * kPiece + 16}, seed++, kUnbounded);
  }
}

TEST_CASE("reduce_scatter: hops, bytes, scratch and coverage are as described") {
  for (int world = 1; world <= 17; ++world) {
    const auto n = static_cast<size_t>(world);
    Blocks blocks(n);
    for (size_t i = 0; i < n; ++i) blocks[i] = (n + i) * 80;
    const uint64_t total = std::accumulate(blocks.begin(), blocks.end(), uint64_t{0});
    const uint64_t longest = (blocks.back() + 63) / 64 * 64;
    const Plans ring = plansOf(named("ring"), reduceScatterSpec(blocks));
    const Plans direct = plansOf(named("direct"), reduceScatterSpec(blocks));
    CAPTURE(world);
    CHECK(hopsOf(ring) == world - 1);
    CHECK(hopsOf(direct) == (world == 1 ? 0 : 1));
    Blocks sizes = {0, 0};
    sizes.insert(sizes.end(), blocks.begin(), blocks.end());
    for (size_t i = 0; i < n; ++i) {
      sizes[kOwn] = blocks[i];
      CHECK(ring[i].scratchBytes == std::min<uint64_t>(3, n < 2 ? 0 : n - 2) * longest);
      CHECK(direct[i].scratchBytes == (n == 1 ? 0 : n * blocks[i]));
      for (const Plan* plan : {&ring[i], &direct[i]}) {
        CHECK(bytesSent(*plan) == total - blocks[i]);
        CHECK(checkPlan(*plan, static_cast<int>(i), world, sizes, 8) == "");
        CHECK(writesEachByteOnce(*plan, kOwn, blocks[i]));
        for (size_t to = 0; to < n; ++to) CHECK(writesEachByteOnce(*plan, blockIndex(to), 0));
      }
    }
  }
}

TEST_CASE("reduce_scatter: beyond 4 GiB the plans match and scratch stays as it is") {
  constexpr uint64_t kLarge = (uint64_t{4} << 30) + 24;
  for (const Blocks& blocks :
       {Blocks(2, kLarge), Blocks(3, kLarge), Blocks{kLarge, 0, 8, kLarge, 0},
        Blocks{8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, kLarge, 0, 16}}) {
    const size_t n = blocks.size();
    const uint64_t total = std::accumulate(blocks.begin(), blocks.end(), uint64_t{0});
    Blocks sizes = {0, 0};
    sizes.insert(sizes.end(), blocks.begin(), blocks.end());
    CAPTURE(blocks);
    for (const char* algorithm : kNames) {
      const Plans plans = plansOf(named(algorithm), reduceScatterSpec(blocks));
      CHECK(hopsOf(plans) > 0);
      for (size_t i = 0; i < n; ++i) {
        sizes[kOwn] = blocks[i];
        CHECK(bytesSent(plans[i]) == total - blocks[i]);
        CHECK(checkPlan(plans[i], static_cast<int>(i), static_cast<int>(n), sizes, 8) == "");
        CHECK(writesEachByteOnce(plans[i], kOwn, blocks[i]));
        if (algorithm == kNames[0]) CHECK(plans[i].scratchBytes <= 3 * kPiece);
      }
    }
  }
}

TEST_CASE("reduce_scatter: empty blocks have neither messages nor copies") {
  for (const char* algorithm : kNames) {
    for (const Plan& plan : plansOf(named(algorithm), reduceScatterSpec({0, 40, 0, 72}))) {
      for (const Step& step : plan.steps) CHECK(step.bytes > 0);
    }
    const Plans alone = plansOf(named(algorithm), reduceScatterSpec({40}));
    REQUIRE(alone[0].steps.size() == 1);
    CHECK(alone[0].steps[0].kind == StepKind::kCopy);
  }
}
