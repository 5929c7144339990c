#include "coll/select.h"
#include "coll_elements.h"

#include <doctest/doctest.h>

#include <numeric>

using namespace ringcomm;
using namespace ringcomm::sim;

namespace {

using Blocks = std::vector<uint64_t>;  // bytes, by rank

// As the ranks see it: who is not the root knows its own block alone.
std::vector<CollectiveSpec> specsOf(Collective kind, int root, const Blocks& blocks) {
  CollectiveSpec spec;
  spec.kind = kind;
  spec.world = static_cast<int>(blocks.size());
  spec.root = root;
  std::vector<CollectiveSpec> specs;
  for (spec.rank = 0; spec.rank < spec.world; ++spec.rank) {
    const auto self = static_cast<size_t>(spec.rank);
    spec.blockBytes = blocks;
    if (spec.rank != root) spec.blockBytes.assign(blocks.size(), 999);
    spec.blockBytes[self] = blocks[self];
    specs.push_back(spec);
  }
  return specs;
}

Plans directPlans(Collective kind, int root, const Blocks& blocks) {
  return plansOf(**findAlgorithm(kind, "direct"), specsOf(kind, root, blocks));
}

Bytes block(size_t rank, uint64_t bytes) { return randomBytes(static_cast<int>(rank), 5, bytes); }

uint16_t blockIndex(size_t rank) { return static_cast<uint16_t>(kBlocks + rank); }

std::vector<RankOp> operation(Collective kind, int root, const Blocks& blocks) {
  std::vector<RankOp> ranks;
  const bool gathers = kind == Collective::kGather;
  for (Plan& plan : directPlans(kind, root, blocks)) {
    const size_t rank = ranks.size();
    std::vector<Bytes> buffers(2);
    buffers[kOwn] = gathers ? block(rank, blocks[rank]) : Bytes(blocks[rank]);
    for (size_t i = 0; i < blocks.size() && static_cast<int>(rank) == root; ++i) {
      buffers.push_back(gathers ? Bytes(blocks[i]) : block(i, blocks[i]));
    }
    ranks.push_back({std::move(plan), std::move(buffers)});
  }
  return ranks;
}

// Either way every rank's block is in the end both with the rank and on the root.
void checkResult(const Simulation& simulation, size_t op, int root, const Blocks& blocks) {
  for (size_t rank = 0; rank < blocks.size(); ++rank) {
    CAPTURE(rank);
    const Bytes right = block(rank, blocks[rank]);
    REQUIRE(simulation.buffer(op, static_cast<int>(rank), kOwn) == right);
    REQUIRE(simulation.buffer(op, root, blockIndex(rank)) == right);
  }
}

void checkRun(int root, const Blocks& blocks, uint64_t seed, uint64_t capacity) {
  const auto world = static_cast<int>(blocks.size());
  const int other = (root + 1) % world;
  Simulation simulation(world, kByte, seed, capacity);
  simulation.add(operation(Collective::kGather, root, blocks));
  simulation.add(operation(Collective::kScatter, other, blocks));
  simulation.add(operation(Collective::kScatter, root, blocks));
  simulation.add(operation(Collective::kGather, other, blocks));
  CAPTURE(root);
  CAPTURE(blocks);
  REQUIRE(simulation.run() == "");
  checkResult(simulation, 0, root, blocks);
  checkResult(simulation, 1, other, blocks);
  checkResult(simulation, 2, root, blocks);
  checkResult(simulation, 3, other, blocks);
}

// All alike, none, only one rank with anything, and sizes from 0 up in no order.
std::vector<Blocks> shapesFor(int world) {
  const auto n = static_cast<size_t>(world);
  std::vector<Blocks> shapes = {Blocks(n, 0), Blocks(n, 1), Blocks(n, 67), Blocks(n, 0), Blocks(n)};
  shapes[3][n / 2] = 33;
  for (size_t i = 0; i < n; ++i) shapes[4][i] = (i * 7) % 5 * 31;
  return shapes;
}

}  // namespace

TEST_CASE("gather, scatter: every block in its place, for every root, sizes and room") {
  uint64_t seed = 1;
  for (int world = 1; world <= 17; ++world) {
    for (int root = 0; root < world; ++root) {
      for (const Blocks& blocks : shapesFor(world)) {
        for (const uint64_t capacity : {uint64_t{1}, uint64_t{40}, kUnbounded}) {
          checkRun(root, blocks, seed++, capacity);
        }
      }
    }
  }
  checkRun(2, {1 << 20, 3, 700001, 0}, seed++, 100000);
}

TEST_CASE("gather, scatter: hops, bytes and coverage are as described, beyond 4 GiB too") {
  for (int world = 1; world <= 17; ++world) {
    const auto n = static_cast<size_t>(world);
    Blocks blocks(n);
    for (size_t i = 0; i < n; ++i) blocks[i] = (uint64_t{5} << 30) + i * 12345;
    const uint64_t total = std::accumulate(blocks.begin(), blocks.end(), uint64_t{0});
    for (int root = 0; root < world; ++root) {
      CAPTURE(world);
      CAPTURE(root);
      const Plans gather = directPlans(Collective::kGather, root, blocks);
      const Plans scatter = directPlans(Collective::kScatter, root, blocks);
      CHECK(hopsOf(gather) == (world == 1 ? 0 : 1));
      CHECK(hopsOf(scatter) == (world == 1 ? 0 : 1));
      for (size_t i = 0; i < n; ++i) {
        const int rank = static_cast<int>(i);
        const bool isRoot = rank == root;
        std::vector<uint64_t> sizes = {0, blocks[i]};
        if (isRoot) sizes.insert(sizes.end(), blocks.begin(), blocks.end());
        CHECK(checkPlan(gather[i], rank, world, sizes, 1) == "");
        CHECK(checkPlan(scatter[i], rank, world, sizes, 1) == "");
        CHECK(bytesSent(gather[i]) == (isRoot ? 0 : blocks[i]));
        CHECK(bytesSent(scatter[i]) == (isRoot ? total - blocks[i] : 0));
        CHECK(writesEachByteOnce(gather[i], kOwn, 0));
        CHECK(writesEachByteOnce(scatter[i], kOwn, blocks[i]));
        for (size_t from = 0; from < n; ++from) {
          CHECK(writesEachByteOnce(gather[i], blockIndex(from), isRoot ? blocks[from] : 0));
          CHECK(writesEachByteOnce(scatter[i], blockIndex(from), 0));
        }
      }
    }
  }
}

TEST_CASE("gather, scatter: empty blocks have neither messages nor copies") {
  for (const Collective kind : {Collective::kGather, Collective::kScatter}) {
    for (const int root : {0, 1}) {
      for (const Plan& plan : directPlans(kind, root, {0, 5, 0, 9})) {
        for (const Step& step : plan.steps) CHECK(step.bytes > 0);
      }
    }
  }
}
