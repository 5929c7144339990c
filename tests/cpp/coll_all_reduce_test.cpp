#include "coll/blocks.h"
#include "coll/pieces.h"
#include "coll/select.h"
#include "coll_elements.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>

using namespace ringcomm;
using namespace ringcomm::sim;

namespace {

constexpr const char* kNames[] = {"ring", "direct", "scatter-gather"};

// Exact sums; the order cannot be seen.
const Element kInteger = {
    8,
    [](uint8_t* dst, const uint8_t* src) { store(dst, load<uint64_t>(dst) + load<uint64_t>(src)); },
    [](uint8_t* dst) { store(dst, load<uint64_t>(dst) * 3 + 7); }};

const Element kFloat = {
    4, [](uint8_t* dst, const uint8_t* src) { store(dst, load<float>(dst) + load<float>(src)); },
    [](uint8_t* dst) { store(dst, load<float>(dst) / 3.0F); }};

CollectiveSpec allReduceSpec(int world, uint64_t count, size_t elementSize) {
  CollectiveSpec spec;
  spec.kind = Collective::kAllReduce;
  spec.world = world;
  spec.count = count;
  spec.elementSize = elementSize;
  return spec;
}

const Algorithm& named(const char* name) { return **findAlgorithm(Collective::kAllReduce, name); }

uint64_t input(int rank, uint64_t index) {
  return Random(static_cast<uint64_t>(rank) * 1000003 + index).next();
}

// Magnitudes from 2^-20 to 2^20: another order of the sum has other bits.
float floatInput(int rank, uint64_t index) {
  const uint64_t bits = input(rank, index);
  const float value = static_cast<float>(static_cast<int64_t>(bits >> 40) - (1 << 23));
  return std::ldexp(value, static_cast<int>(bits % 41) - 20);
}

std::vector<RankOp> operation(const Algorithm& algorithm, const CollectiveSpec& spec) {
  std::vector<RankOp> ranks;
  for (Plan& plan : plansOf(algorithm, spec)) {
    const int rank = static_cast<int>(ranks.size());
    Bytes data(spec.count * spec.elementSize);
    for (uint64_t i = 0; i < spec.count; ++i) {
      if (spec.elementSize == 4) {
        store(&data[i * 4], floatInput(rank, i));
      } else {
        store(&data[i * 8], input(rank, i));
      }
    }
    ranks.push_back({std::move(plan), {{}, std::move(data)}});
  }
  return ranks;
}

struct Run {
  std::string error;
  std::vector<Bytes> results;  // by rank
};

Run run(const char* algorithm, int world, uint64_t count, const Element& element, uint64_t seed,
        uint64_t capacity) {
  Simulation simulation(world, element, seed, capacity);
  const CollectiveSpec spec = allReduceSpec(world, count, element.size);
  const size_t op = simulation.add(operation(named(algorithm), spec));
  Run done;
  done.error = simulation.run();
  for (int rank = 0; rank < world; ++rank) {
    done.results.push_back(simulation.buffer(op, rank, kData));
  }
  return done;
}

// The operands of an element in the order in which `algorithm` takes them.
std::vector<int> orderOf(const std::string& algorithm, int world, uint64_t count, uint64_t index) {
  int owner = world - 1;  // so that the sum begins at rank 0: rank order
  if (algorithm == "ring") {
    owner = 0;
    while (index * 8 >=
           blockOf(count, 8, world, owner).offset + blockOf(count, 8, world, owner).bytes) {
      ++owner;
    }
  }
  std::vector<int> order;
  for (int i = 1; i <= world; ++i) order.push_back((owner + i) % world);
  return order;
}

// The ring adds what arrives (the sum so far) to its own part, the others a part to the sum so far.
Bytes expected(const std::string& algorithm, int world, uint64_t count, const Element& element) {
  Bytes result(count * 8);
  for (uint64_t i = 0; i < count; ++i) {
    const std::vector<int> order = orderOf(algorithm, world, count, i);
    uint8_t sum[8];
    store(sum, input(order[0], i));
    for (size_t k = 1; k < order.size(); ++k) {
      uint8_t own[8];
      store(own, input(order[k], i));
      if (algorithm == "ring") {
        element.accumulate(own, sum);
        std::memcpy(sum, own, 8);
      } else {
        element.accumulate(sum, own);
      }
    }
    if (world > 1) element.finish(sum);
    std::memcpy(&result[i * 8], sum, 8);
  }
  return result;
}

void checkRun(const char* algorithm, int world, uint64_t count, const Element& element,
              uint64_t seed, uint64_t capacity) {
  const Run done = run(algorithm, world, count, element, seed, capacity);
  CAPTURE(algorithm);
  CAPTURE(world);
  CAPTURE(count);
  CAPTURE(seed);
  CAPTURE(capacity);
  REQUIRE(done.error == "");
  const Bytes right = expected(algorithm, world, count, element);
  for (int rank = 0; rank < world; ++rank) {
    CAPTURE(rank);
    REQUIRE(done.results[static_cast<size_t>(rank)] == right);
  }
}

// Around nothing, one element, one a rank, and one block of 64 bytes (8 elements) a rank.
std::vector<uint64_t> countsFor(int world) {
  const auto n = static_cast<uint64_t>(world);
  return {0, 1, n - 1, n, n + 1, 8 * n - 1, 8 * n, 8 * n + 1, 16 * n + 3};
}

}  // namespace

TEST_CASE("all_reduce: right sums in the documented order, finished once, for any room") {
  uint64_t seed = 1;
  for (const char* algorithm : kNames) {
    for (int world = 1; world <= 17; ++world) {
      for (const uint64_t count : countsFor(world)) {
        for (const uint64_t capacity : {uint64_t{13}, uint64_t{1000}, kUnbounded}) {
          checkRun(algorithm, world, count, kInteger, seed++, capacity);
          checkRun(algorithm, world, count, kTrace, seed++, capacity);
        }
      }
    }
  }
}

TEST_CASE("all_reduce: streams with room for one byte") {
  uint64_t seed = 1;
  for (const char* algorithm : kNames) {
    for (int world = 2; world <= 17; ++world) {
      checkRun(algorithm, world, static_cast<uint64_t>(world), kTrace, seed++, 1);
      checkRun(algorithm, world, world < 6 ? 8 * static_cast<uint64_t>(world) + 1 : 5, kTrace,
               seed++, 1);
    }
  }
}

TEST_CASE("all_reduce: vectors of megabytes") {
  uint64_t seed = 1;
  for (const char* algorithm : kNames) {
    for (const int world : {2, 3, 4}) {
      checkRun(algorithm, world, 100003, kTrace, seed++, 256 << 10);
      checkRun(algorithm, world, 70001, kInteger, seed++, kUnbounded);
    }
  }
}

TEST_CASE("all_reduce: a ring that goes around in several windows") {
  for (const int world : {2, 3}) {
    const uint64_t window = kPieceBytes / 8 * static_cast<uint64_t>(world);
    const Plans plans = plansOf(named("ring"), allReduceSpec(world, 2 * window + 11, 8));
    CHECK(messagesSent(plans[0]) == 3 * 2 * (static_cast<uint64_t>(world) - 1));
    checkRun("ring", world, 2 * window + 11, kInteger, static_cast<uint64_t>(world), 1 << 20);
  }
}

TEST_CASE("all_reduce: float32 has the same bits on every rank and in every interleaving") {
  for (const char* algorithm : kNames) {
    for (const int world : {2, 3, 4, 5, 8, 16}) {
      const Run first = run(algorithm, world, 517, kFloat, 1, kUnbounded);
      REQUIRE(first.error == "");
      for (uint64_t seed = 2; seed < 6; ++seed) {
        const Run other = run(algorithm, world, 517, kFloat, seed, seed * 50);
        REQUIRE(other.error == "");
        for (const Bytes& result : other.results) {
          CAPTURE(algorithm);
          CAPTURE(world);
          CAPTURE(seed);
          REQUIRE(result == first.results[0]);
        }
      }
    }
  }
}

TEST_CASE("all_reduce: operations queued behind each other on the same streams") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    const int world = 2 + static_cast<int>(random.below(6));
    const uint64_t capacities[] = {1, 9, 300, kUnbounded};
    Simulation simulation(world, kTrace, seed, capacities[random.below(4)]);
    std::vector<std::pair<const char*, uint64_t>> queued;
    for (int i = 0; i < 5; ++i) {
      queued.emplace_back(kNames[random.below(3)], random.below(90));
      simulation.add(
          operation(named(queued.back().first), allReduceSpec(world, queued.back().second, 8)));
    }
    CAPTURE(seed);
    REQUIRE(simulation.run() == "");
    for (size_t op = 0; op < queued.size(); ++op) {
      const Bytes right = expected(queued[op].first, world, queued[op].second, kTrace);
      for (int rank = 0; rank < world; ++rank) {
        REQUIRE(simulation.buffer(op, rank, kData) == right);
      }
    }
  }
}

TEST_CASE("all_reduce: hops, bytes and coverage are as described, beyond 4 GiB too") {
  for (int world = 2; world <= 17; ++world) {
    const auto n = static_cast<uint64_t>(world);
    for (const uint64_t count : {8 * n, 1000 * n + 7, (uint64_t{5} << 30) + 3}) {
      const uint64_t bytes = count * 8;
      const auto block = [&](int rank) { return blockOf(count, 8, world, rank % world).bytes; };
      CAPTURE(world);
      CAPTURE(count);
      const Plans ring = plansOf(named("ring"), allReduceSpec(world, count, 8));
      const Plans direct = plansOf(named("direct"), allReduceSpec(world, count, 8));
      const Plans middle = plansOf(named("scatter-gather"), allReduceSpec(world, count, 8));
      CHECK(hopsOf(ring) == 2 * (world - 1));
      CHECK(hopsOf(direct) == 1);
      CHECK(hopsOf(middle) == 2);
      for (int rank = 0; rank < world; ++rank) {
        const auto i = static_cast<size_t>(rank);
        // The blocks of a window differ by a line at most.
        const uint64_t windows = bytes / (n * kPieceBytes) + 1;
        const uint64_t share = 2 * (bytes - bytes / n);
        CHECK(bytesSent(ring[i]) <= share + windows * 128);
        CHECK(bytesSent(ring[i]) + windows * 128 >= share);
        CHECK(bytesSent(direct[i]) == (n - 1) * bytes);
        CHECK(bytesSent(middle[i]) == bytes - block(rank) + (n - 1) * block(rank));
        CHECK(ring[i].scratchBytes == 0);
        CHECK(direct[i].scratchBytes == n * bytes);
        CHECK(middle[i].scratchBytes == n * block(rank));
        for (const Plan& plan : {ring[i], direct[i], middle[i]}) {
          CHECK(checkPlan(plan, rank, world, {0, bytes}, 8) == "");
          CHECK(writesEachByteOnce(plan, kData, bytes));
        }
      }
    }
  }
}

TEST_CASE("all_reduce: one rank alone has nothing to do") {
  for (const char* algorithm : kNames) {
    const Plans plans = plansOf(named(algorithm), allReduceSpec(1, 100, 4));
    CHECK(plans[0].steps.empty());
    CHECK(plans[0].scratchBytes == 0);
    CHECK(plans[0].algorithm == std::string(algorithm));
  }
}

TEST_CASE("all_reduce: an empty vector has no messages, a short one none for its empty blocks") {
  for (const char* algorithm : kNames) {
    for (const Plan& plan : plansOf(named(algorithm), allReduceSpec(4, 0, 4))) {
      CHECK(messagesSent(plan) == 0);
    }
    for (const Plan& plan : plansOf(named(algorithm), allReduceSpec(4, 20, 4))) {
      for (const Step& step : plan.steps) CHECK(step.bytes > 0);
    }
  }
}

TEST_CASE("blocks: whole elements from lines' starts, dealt evenly, without gaps") {
  for (const size_t elementSize : {1, 2, 4, 8, 12, 16}) {
    for (int blocks = 1; blocks <= 17; ++blocks) {
      for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{63}, uint64_t{64},
                                   uint64_t{1000}, uint64_t{4097}, (uint64_t{1} << 40) + 5}) {
        uint64_t end = 0;
        uint64_t longest = 0;
        uint64_t shortest = kUnbounded;
        for (int i = 0; i < blocks; ++i) {
          const Block block = blockOf(count, elementSize, blocks, i);
          REQUIRE(block.offset == end);
          REQUIRE(block.bytes % elementSize == 0);
          if (block.bytes > 0) REQUIRE(block.offset % 64 == 0);
          end += block.bytes;
          longest = std::max(longest, block.bytes);
          shortest = std::min(shortest, block.bytes);
        }
        REQUIRE(end == count * elementSize);
        const uint64_t unit = elementSize == 12 ? 192 : 64;
        REQUIRE(longest - shortest < 2 * unit);
      }
    }
  }
}
