#include "coll/select.h"
#include "coll_elements.h"

#include <doctest/doctest.h>

#include <string>

using namespace ringcomm;
using namespace ringcomm::sim;

namespace {

constexpr const char* kNames[] = {"chain", "direct"};

CollectiveSpec reduceSpec(int world, int root, uint64_t count) {
  CollectiveSpec spec;
  spec.kind = Collective::kReduce;
  spec.world = world;
  spec.root = root;
  spec.count = count;
  spec.elementSize = 8;
  return spec;
}

const Algorithm& named(const char* name) { return **findAlgorithm(Collective::kReduce, name); }

struct Case {
  const char* algorithm;
  int world;
  int root;
  uint64_t count;
  bool inPlace = false;  // the root's output is its input
};

std::vector<Bytes> inputsOf(const Case& asked) {
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < asked.world; ++rank) {
    inputs.push_back(randomBytes(rank, asked.count, asked.count * 8));
  }
  return inputs;
}

std::vector<RankOp> operation(const Case& asked) {
  std::vector<RankOp> ranks;
  const std::vector<Bytes> inputs = inputsOf(asked);
  for (Plan& plan :
       plansOf(named(asked.algorithm), reduceSpec(asked.world, asked.root, asked.count))) {
    const auto rank = static_cast<int>(ranks.size());
    std::vector<Bytes> buffers = {{}, inputs[ranks.size()]};
    if (asked.inPlace) {
      for (Step& step : plan.steps) {
        if (step.dst.buffer == kOutput) step.dst.buffer = kInput;
      }
    } else if (rank == asked.root) {
      buffers.emplace_back(asked.count * 8);
    }
    ranks.push_back({std::move(plan), std::move(buffers)});
  }
  return ranks;
}

void checkResult(const Simulation& simulation, size_t op, const Case& asked) {
  const std::vector<Bytes> inputs = inputsOf(asked);
  const bool chain = std::string(asked.algorithm) == "chain";
  const Bytes sum = chain ? sumAroundTo(asked.root, inputs) : sumByRank(inputs);
  for (int rank = 0; rank < asked.world; ++rank) {
    CAPTURE(rank);
    const bool over = asked.inPlace && rank == asked.root;
    REQUIRE(simulation.buffer(op, rank, kInput) ==
            (over ? sum : inputs[static_cast<size_t>(rank)]));
  }
  REQUIRE(simulation.buffer(op, asked.root, asked.inPlace ? kInput : kOutput) == sum);
}

// The second operation goes to another root, on the same streams.
void checkRun(const Case& asked, uint64_t seed, uint64_t capacity) {
  Case next = asked;
  next.root = (asked.root + 1) % asked.world;
  next.inPlace = true;
  Simulation simulation(asked.world, kTrace, seed, capacity);
  simulation.add(operation(asked));
  simulation.add(operation(next));
  CAPTURE(asked.algorithm);
  CAPTURE(asked.root);
  CAPTURE(asked.count);
  REQUIRE(simulation.run() == "");
  checkResult(simulation, 0, asked);
  checkResult(simulation, 1, next);
}

}  // namespace

TEST_CASE("reduce: the sum in the documented order, on the root alone, for every root and room") {
  uint64_t seed = 1;
  for (const char* algorithm : kNames) {
    for (int world = 1; world <= 17; ++world) {
      for (int root = 0; root < world; ++root) {
        for (const uint64_t count : {0, 1, 13}) {
          for (const uint64_t capacity : {uint64_t{1}, uint64_t{50}, kUnbounded}) {
            checkRun({algorithm, world, root, count}, seed++, capacity);
          }
        }
      }
    }
  }
}

TEST_CASE("reduce: vectors of megabytes, which the slots of scratch see several times") {
  uint64_t seed = 1;
  for (const char* algorithm : kNames) {
    for (const int world : {2, 3, 5}) {
      checkRun({algorithm, world, 1, 300001}, seed++, 100000);
      checkRun({algorithm, world, world - 1, 262144}, seed++, kUnbounded);
    }
  }
}

TEST_CASE("reduce: hops, bytes, scratch and coverage are as described, beyond 4 GiB too") {
  for (int world = 1; world <= 17; ++world) {
    for (const int root : {0, world / 2, world - 1}) {
      CAPTURE(world);
      CAPTURE(root);
      CHECK(hopsOf(plansOf(named("chain"), reduceSpec(world, root, 1000))) == world - 1);
      const uint64_t count = (uint64_t{5} << 27) + 3;
      const uint64_t bytes = count * 8;
      const Plans chain = plansOf(named("chain"), reduceSpec(world, root, count));
      const Plans direct = plansOf(named("direct"), reduceSpec(world, root, count));
      CHECK(hopsOf(chain) >= world - 1);
      CHECK(hopsOf(direct) == (world == 1 ? 0 : 1));
      for (int rank = 0; rank < world; ++rank) {
        const auto i = static_cast<size_t>(rank);
        const bool isRoot = rank == root;
        const bool passesOn = !isRoot && rank != (root + 1) % world;
        CHECK(chain[i].scratchBytes == (passesOn ? 3 * (512 << 10) : 0));
        CHECK(direct[i].scratchBytes == (isRoot && world > 1 ? world * bytes : 0));
        for (const Plan* plan : {&chain[i], &direct[i]}) {
          std::vector<uint64_t> sizes = {0, bytes};
          if (isRoot) sizes.push_back(bytes);
          CHECK(checkPlan(*plan, rank, world, sizes, 8) == "");
          CHECK(bytesSent(*plan) == (isRoot ? 0 : bytes));
          CHECK(writesEachByteOnce(*plan, kInput, 0));
          CHECK(writesEachByteOnce(*plan, kOutput, isRoot ? bytes : 0));
        }
      }
    }
  }
}

TEST_CASE("reduce: an empty vector has no steps, a short one little scratch") {
  for (const char* algorithm : kNames) {
    for (const Plan& plan : plansOf(named(algorithm), reduceSpec(4, 1, 0))) {
      CHECK(plan.steps.empty());
      CHECK(plan.scratchBytes == 0);
    }
  }
  CHECK(plansOf(named("chain"), reduceSpec(4, 1, 2))[0].scratchBytes == 64);
}
