#include "coll/select.h"
#include "coll_check.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>

using namespace ringcomm;

namespace {

std::string chosen(Collective kind, int world, uint64_t bytes, const Tuning& tuning = {}) {
  CollectiveSpec spec;
  spec.kind = kind;
  spec.world = world;
  spec.count = bytes;
  spec.blockBytes.assign(static_cast<size_t>(world), 0);
  spec.blockBytes[0] = bytes;
  spec.sendBytes = spec.recvBytes = spec.blockBytes;
  return makePlan(spec, tuning).algorithm;
}

}  // namespace

TEST_CASE("select: the defaults' thresholds, to the byte") {
  constexpr uint64_t kKi = 1024;
  constexpr auto kAllReduce = Collective::kAllReduce;
  CHECK(chosen(kAllReduce, 2, 64 * kKi) == "direct");
  CHECK(chosen(kAllReduce, 2, 64 * kKi + 1) == "ring");
  CHECK(chosen(kAllReduce, 3, 32 * kKi) == "direct");
  CHECK(chosen(kAllReduce, 3, 32 * kKi + 1) == "scatter-gather");
  CHECK(chosen(kAllReduce, 4, 128 * kKi) == "scatter-gather");
  CHECK(chosen(kAllReduce, 4, 128 * kKi + 1) == "ring");
  CHECK(chosen(kAllReduce, 16, 4 * kKi) == "direct");
  CHECK(chosen(kAllReduce, 16, 5 * kKi) == "scatter-gather");
  CHECK(chosen(Collective::kReduce, 2, 64 * kKi) == "direct");
  CHECK(chosen(Collective::kReduce, 16, 64 * kKi) == "direct");
  CHECK(chosen(Collective::kReduce, 4, 64 * kKi + 1) == "chain");
  CHECK(chosen(Collective::kReduceScatter, 2, 0) == "ring");
  CHECK(chosen(Collective::kReduceScatter, 3, 1024 * kKi) == "direct");
  CHECK(chosen(Collective::kReduceScatter, 3, 1024 * kKi + 1) == "ring");
  CHECK(chosen(Collective::kBroadcast, 4, 64 * kKi) == "tree");
  CHECK(chosen(Collective::kBroadcast, 4, 64 * kKi + 1) == "chain");
  CHECK(chosen(Collective::kAllGather, 4, 1024 * kKi) == "direct");
  CHECK(chosen(Collective::kAllGather, 4, 1024 * kKi + 1) == "ring");
  CHECK(chosen(Collective::kBarrier, 8, 0) == "direct");
  CHECK(chosen(Collective::kBarrier, 9, 0) == "dissemination");
}

TEST_CASE("select: an algorithm can be forced by name, and let go again") {
  Tuning tuning;
  REQUIRE(forceAlgorithms("all_reduce=ring,broadcast=chain", tuning).ok());
  CHECK(chosen(Collective::kAllReduce, 4, 8, tuning) == "ring");
  CHECK(chosen(Collective::kBroadcast, 4, 8, tuning) == "chain");
  CHECK(chosen(Collective::kAllGather, 4, 8, tuning) == "direct");
  REQUIRE(forceAlgorithms("all_reduce=auto", tuning).ok());
  CHECK(chosen(Collective::kAllReduce, 4, 8, tuning) == "direct");
  CHECK(chosen(Collective::kBroadcast, 4, 8, tuning) == "chain");
  REQUIRE(forceAlgorithms("", tuning).ok());
  CHECK(chosen(Collective::kBroadcast, 4, 8, tuning) == "chain");
}

TEST_CASE("select: what cannot be forced is named, with what can, and nothing changes") {
  Tuning tuning;
  Status status = forceAlgorithms("broadcast=chain,all_reduce=rign", tuning);
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message() ==
        "no all_reduce algorithm 'rign'; allowed: auto, direct, scatter-gather, ring");
  CHECK(chosen(Collective::kBroadcast, 4, 8, tuning) == "tree");
  status = forceAlgorithms("allreduce=ring", tuning);
  CHECK(status.message() ==
        "no collective 'allreduce' to force an algorithm of; allowed: all_reduce, reduce, "
        "broadcast, all_gather, gather, scatter, reduce_scatter, all_to_all, barrier");
  status = forceAlgorithms("ring", tuning);
  CHECK(status.message() == "forced algorithm 'ring' is not of the form collective=algorithm");
  CHECK(forceAlgorithms("all_reduce=ring,,", tuning).code() == Code::kInvalidArgument);
  CHECK(!findAlgorithm(Collective::kBarrier, "ring").ok());
}

TEST_CASE("select: the table has no gaps and says what is chosen at its ends") {
  Tuning tuning;
  REQUIRE(forceAlgorithms("all_gather=ring", tuning).ok());
  for (const int world : {1, 2, 3, 4, 9, 16}) {
    const std::vector<AlgorithmRange> table = algorithmTable(world, tuning);
    constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
    size_t row = 0;
    for (size_t i = 0; i < kCollectiveCount; ++i) {
      uint64_t next = 0;
      do {
        REQUIRE(row < table.size());
        CAPTURE(world);
        CAPTURE(row);
        CHECK(table[row].kind == static_cast<Collective>(i));
        CHECK(table[row].first == next);
        CHECK(table[row].last >= table[row].first);
        const uint64_t bytes = table[row].last < kMax ? table[row].last : table[row].first;
        CHECK(chosen(table[row].kind, world, bytes, tuning) == table[row].algorithm);
        next = table[row].last + 1;  // 0 behind the last row of the collective
        ++row;
      } while (next != 0);
    }
    CHECK(row == table.size());
    CHECK(table.size() == (world == 1 ? 11 : world == 2 ? 12 : 14));
  }
}

TEST_CASE("select: a world of one sends nothing, whatever is asked") {
  for (size_t i = 0; i < kCollectiveCount; ++i) {
    CollectiveSpec spec;
    spec.kind = static_cast<Collective>(i);
    spec.count = 1000;
    spec.blockBytes = spec.sendBytes = spec.recvBytes = {1000};
    CHECK(sim::messagesSent(makePlan(spec, {})) == 0);
  }
}

TEST_CASE("collective: names and sizes") {
  CHECK(collectiveName(Collective::kAllGather) == std::string("all_gather"));
  CollectiveSpec spec;
  spec.count = 7;
  spec.elementSize = 4;
  spec.blockBytes = {1, 2, 3};
  CHECK(collectiveBytes(spec) == 0);
  spec.kind = Collective::kAllReduce;
  CHECK(collectiveBytes(spec) == 28);
  spec.kind = Collective::kReduce;
  CHECK(collectiveBytes(spec) == 28);
  spec.kind = Collective::kAllGather;
  CHECK(collectiveBytes(spec) == 6);
  spec.kind = Collective::kReduceScatter;
  CHECK(collectiveBytes(spec) == 6);
  // No rank but the root need know all sizes.
  spec.kind = Collective::kGather;
  CHECK(collectiveBytes(spec) == 0);
}
