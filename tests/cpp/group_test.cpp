#include "engine/group.h"

#include "calls.h"
#include "endings.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>

using namespace ringcomm;
using namespace ringcomm::testing;

namespace {

// Every collective, with sizes around what splits into blocks, slices and shares.
std::vector<CallShape> everyCall(int world) {
  std::vector<CallShape> shapes;
  const size_t largest = kSlowness > 1 ? 50021 : 140003;
  for (const size_t count :
       {size_t{0}, size_t{1}, size_t{2}, size_t{5}, size_t{1000}, size_t{20011}, largest}) {
    for (const auto& [dtype, op] :
         {std::pair{DType::kFloat32, ReduceOp::kSum}, std::pair{DType::kFloat32, ReduceOp::kAvg},
          std::pair{DType::kInt64, ReduceOp::kMax}, std::pair{DType::kUInt8, ReduceOp::kSum},
          std::pair{DType::kInt16, ReduceOp::kProduct}}) {
      shapes.push_back({Collective::kAllReduce, dtype, op, -1, count, count});
    }
    shapes.push_back(
        {Collective::kBroadcast, DType::kComplex128, ReduceOp::kNone, world - 1, count});
    shapes.push_back({Collective::kBroadcast, DType::kByte, ReduceOp::kNone, 0, count, 3});
    const int root = world / 2;
    for (const bool uneven : {false, true}) {
      shapes.push_back(
          {Collective::kAllGather, DType::kInt32, ReduceOp::kNone, -1, count, 5, uneven});
      shapes.push_back(
          {Collective::kGather, DType::kInt16, ReduceOp::kNone, root, count, 6, uneven});
      shapes.push_back(
          {Collective::kScatter, DType::kFloat64, ReduceOp::kNone, root, count, 7, uneven});
      shapes.push_back(
          {Collective::kReduceScatter, DType::kFloat32, ReduceOp::kAvg, -1, count, 8, uneven});
      shapes.push_back(
          {Collective::kAllToAll, DType::kInt64, ReduceOp::kNone, -1, count, 9, uneven});
    }
    shapes.push_back({Collective::kReduce, DType::kFloat64, ReduceOp::kSum, root, count, 10});
    shapes.push_back({});
  }
  return shapes;
}

// Calls and checks all of them on every rank, one after another.
void checkEveryCall(const Setting& setting) {
  CAPTURE(setting.text());
  const std::vector<CallShape> shapes = everyCall(setting.world);
  std::mutex mutex;
  std::string problems;
  runCluster(setting.world, setting.options(), [&](Member& member) {
    for (const CallShape& shape : shapes) {
      Call call(shape, member.rank, setting.world);
      const Status status = member.call(call.desc());
      const size_t wrong = status.ok() ? call.wrong() : 0;
      if (!status.ok() || wrong > 0) {
        std::lock_guard<std::mutex> lock(mutex);
        problems += rankName(member.rank) + " " + shape.text() + ": " + std::to_string(wrong) +
                    " wrong, " + status.message() + "\n";
      }
    }
  });
  CHECK(problems == "");
}

}  // namespace

TEST_CASE("every collective is right for every world size") {
  for (const int world : {1, 2, 3, 4, 5}) {
    checkEveryCall({world});
  }
}

TEST_CASE("every collective is right over several lanes and loops, and in small slices") {
  checkEveryCall({2, 3, 1});
  checkEveryCall({3, 3, 3});
  checkEveryCall({2, 1, 3, 4096});
  checkEveryCall({5, 3, 3, 4096});
}

TEST_CASE("every algorithm is right at every size") {
  for (const char* forced :
       {"all_reduce=ring,broadcast=chain,all_gather=ring,barrier=dissemination",
        "all_reduce=direct,broadcast=tree,all_gather=direct,barrier=direct",
        "all_reduce=scatter-gather"}) {
    checkEveryCall({3, 1, 1, 262144, forced});
    checkEveryCall({4, 3, 1, 4096, forced});
  }
}

TEST_CASE("many operations in flight from several threads, in one order on all ranks") {
  constexpr int kCalls = 200;
  constexpr int kThreads = 4;
  for (const int64_t lanes : {1, 3}) {
    std::atomic<size_t> wrong{0};
    std::atomic<int> failures{0};
    const Setting setting{3, lanes, lanes, 4096};
    runCluster(setting.world, setting.options(), [&](Member& member) {
      std::atomic<int> turn{0};
      std::vector<std::thread> threads;
      for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
          std::vector<std::pair<std::unique_ptr<Call>, std::shared_ptr<Op>>> mine;
          for (int i = t; i < kCalls; i += kThreads) {
            const size_t count = static_cast<size_t>(i * 37 % 5000) * (i % 50 == 0 ? 40 : 1);
            CallShape shape{Collective::kAllReduce,  DType::kFloat32, ReduceOp::kSum, -1, count,
                            static_cast<uint64_t>(i)};
            auto call = std::make_unique<Call>(shape, member.rank, setting.world);
            while (turn != i) {
              std::this_thread::yield();
            }
            auto op = member.submit(call->desc(), i % 3 == 0);
            ++turn;
            mine.emplace_back(std::move(call), std::move(op));
          }
          for (auto& [call, op] : mine) {
            failures += member.finish(op).ok() ? 0 : 1;
            wrong += call->wrong();
          }
        });
      }
      for (std::thread& thread : threads) {
        thread.join();
      }
      CHECK(member.group->sequence() == kCalls);
    });
    CHECK(failures == 0);
    CHECK(wrong == 0);
  }
}

TEST_CASE("operations on the same memory run one after the other") {
  for (const int64_t lanes : {1, 3}) {
    const Setting setting{3, lanes, lanes};
    runCluster(setting.world, setting.options(), [&](Member& member) {
      std::vector<double> large(100'000, 1);
      std::vector<double> small(100, 1);
      std::vector<std::shared_ptr<Op>> ops;
      for (int i = 0; i < 5; ++i) {
        ops.push_back(member.submit(Member::allReduceDesc(large, DType::kFloat64)));
        ops.push_back(member.submit(Member::allReduceDesc(small, DType::kFloat64)));
      }
      for (const auto& op : ops) {
        CHECK(member.finish(op).ok());
      }
      CHECK(std::count(large.begin(), large.end(), 243.0) == 100'000);
      CHECK(std::count(small.begin(), small.end(), 243.0) == 100);
    });
  }
}

TEST_CASE("a barrier ends after what was called before it") {
  const Setting setting{2, 3, 3};
  runCluster(setting.world, setting.options(), [&](Member& member) {
    std::vector<double> large(1'000'000, 1);
    const auto before = member.submit(Member::allReduceDesc(large, DType::kFloat64));
    CHECK(member.call(Member::barrierDesc()).ok());
    CHECK(before->done());
    CHECK(member.finish(before).ok());
  });
}

TEST_CASE("no rank passes a barrier before all have come") {
  constexpr int kWorld = 5;
  for (const char* algorithm : {"barrier=direct", "barrier=dissemination"}) {
    std::atomic<int> arrived{0};
    runCluster(kWorld, Setting{kWorld, 1, 1, 4096, algorithm}.options(), [&](Member& member) {
      for (int round = 1; round <= 20; ++round) {
        if (round % kWorld == member.rank) {
          std::this_thread::sleep_for(seconds(0.005));
        }
        ++arrived;
        CHECK(member.call(Member::barrierDesc()).ok());
        CHECK(arrived >= round * kWorld);
      }
    });
  }
}

TEST_CASE("a wait that runs out of time leaves the operation running") {
  runCluster(2, Options(), [&](Member& member) {
    std::vector<float> data(10, 1);
    if (member.rank == 1) {
      std::this_thread::sleep_for(seconds(0.3));
      CHECK(member.allReduce(data, DType::kFloat32).ok());
      return;
    }
    const auto op = member.submit(Member::allReduceDesc(data, DType::kFloat32), true);
    const TimePoint start = Clock::now();
    CHECK_FALSE(member.group->wait(*op, start + seconds(0.05)));
    CHECK(secondsSince(start) < 0.05 + 0.2 * kSlowness);
    CHECK(member.finish(op).ok());
    CHECK(data[9] == 2);
  });
}

TEST_CASE("ranks that call different operations all hear of both calls") {
  struct Row {
    const char* name;
    CallShape odd;
    const char* oddText;
  };
  const CallShape common{Collective::kAllReduce, DType::kFloat32, ReduceOp::kSum, -1, 1000};
  const Row rows[] = {
      {"count", {Collective::kAllReduce, DType::kFloat32, ReduceOp::kSum, -1, 1001}, "1001 x"},
      {"dtype", {Collective::kAllReduce, DType::kInt32, ReduceOp::kSum, -1, 1000}, "x int32, sum"},
      {"op", {Collective::kAllReduce, DType::kFloat32, ReduceOp::kMax, -1, 1000}, "float32, max"},
      {"kind", {Collective::kBroadcast, DType::kFloat32, ReduceOp::kNone, 0, 1000}, "broadcast #"},
      {"barrier", {}, "barrier #"},
  };
  for (const Row& row : rows) {
    for (const Setting& setting : {Setting{2}, Setting{4, 3, 3, 4096, "all_reduce=ring"}}) {
      CAPTURE(row.name);
      CAPTURE(setting.text());
      const auto ends = endings(setting, [&](const Member& member) {
        Call call(member.rank == 1 ? row.odd : common, member.rank, setting.world);
        return member.call(call.desc());
      });
      checkMismatch(ends, {row.oddText, "all_reduce #", "1000 x float32, sum", rankName(1) + " ("});
    }
  }
}

TEST_CASE("different roots, and another order of the same calls, are mismatches too") {
  const auto byRoot = endings({3}, [](const Member& member) {
    Call call(
        {Collective::kBroadcast, DType::kFloat32, ReduceOp::kNone, member.rank == 2 ? 2 : 0, 500},
        member.rank, 3);
    const Status status = member.call(call.desc());
    // A root waits for nobody: what the other one sent meets it in the next operation.
    return status.ok() ? member.call(Member::barrierDesc()) : status;
  });
  checkMismatch(byRoot, {"broadcast #", "root "});
  const auto byOrder = endings({3}, [](const Member& member) {
    const CallShape shapes[2] = {
        {Collective::kAllReduce, DType::kFloat32, ReduceOp::kSum, -1, 1000},
        {Collective::kAllGather, DType::kFloat32, ReduceOp::kNone, -1, 1000}};
    Call first(shapes[member.rank == 0 ? 1 : 0], member.rank, 3);
    Call second(shapes[member.rank == 0 ? 0 : 1], member.rank, 3);
    const auto one = member.submit(first.desc());
    const auto two = member.submit(second.desc());
    const Status status = member.finish(one);
    CHECK_FALSE(member.finish(two).ok());
    return status;
  });
  checkMismatch(byOrder, {"all_reduce #", "all_gather #"});
}

TEST_CASE("a rank that leaves while others wait for it is named by all of them") {
  for (const Setting& setting : {Setting{2}, Setting{3}, Setting{5, 1, 1, 4096, "all_reduce=ring"},
                                 Setting{3, 3, 3, 4096}}) {
    CAPTURE(setting.text());
    const auto ends = endings(setting, [&](const Member& member) -> Status {
      std::vector<float> data(100'000);
      CHECK(member.allReduce(data, DType::kFloat32).ok());  // they are connected
      if (member.rank == 1) {
        std::this_thread::sleep_for(seconds(0.1));
        member.group->close();
      }
      return member.allReduce(data, DType::kFloat32);
    });
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      CAPTURE(rank);
      CAPTURE(ends[rank].status.message());
      CHECK(ends[rank].status.code() == (rank == 1 ? Code::kAborted : Code::kPeerLost));
      if (rank != 1) {
        CHECK(ends[rank].status.rank() == 1);
        CHECK(contains(ends[rank].status, rankName(1) + " ("));
        CHECK(contains(ends[rank].status, "left"));
      }
      CHECK(ends[rank].seconds < 0.1 + 1.0 * kSlowness);
    }
  }
}

TEST_CASE("an abort ends everybody's operations with its reason") {
  for (const Setting& setting : {Setting{2}, Setting{5, 1, 1, 4096, "all_reduce=ring"}}) {
    CAPTURE(setting.text());
    const auto ends = endings(setting, [&](const Member& member) -> Status {
      if (member.rank == 1) {
        std::this_thread::sleep_for(seconds(0.1));
        member.group->abort("was told to end");
      }
      std::vector<float> data(100'000);
      return member.allReduce(data, DType::kFloat32);
    });
    for (const Ending& end : ends) {
      CAPTURE(end.status.message());
      CHECK(end.status.code() == Code::kAborted);
      CHECK(end.status.rank() == 1);
      CHECK(contains(end.status, rankName(1) + " ("));
      CHECK(contains(end.status, "was told to end"));
      CHECK(end.seconds < 0.1 + 1.0 * kSlowness);
    }
  }
}

TEST_CASE("a rank that never calls is named by all when the time is over") {
  for (const Setting& setting : {Setting{2}, Setting{3, 1, 1, 4096, "all_reduce=direct"},
                                 Setting{4, 1, 1, 4096, "all_reduce=ring"}}) {
    CAPTURE(setting.text());
    const auto ends = endings(setting, [&](const Member& member) -> Status {
      if (member.rank == 1) {
        std::this_thread::sleep_for(seconds(0.3 + 0.5 * kSlowness));
        std::vector<float> data(1);
        return member.allReduce(data, DType::kFloat32);
      }
      std::vector<float> data(10'000);
      OpDesc desc = Member::allReduceDesc(data, DType::kFloat32);
      desc.timeout = seconds(0.3);
      return member.call(std::move(desc));
    });
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      CAPTURE(rank);
      CAPTURE(ends[rank].status.message());
      CHECK(ends[rank].status.code() == Code::kTimeout);
      CHECK(contains(ends[rank].status, rankName(1) + " ("));
      CHECK(contains(ends[rank].status, "300ms"));
      if (rank != 1) {
        CHECK(ends[rank].status.rank() == 1);
        CHECK(ends[rank].seconds >= 0.29);
        CHECK(ends[rank].seconds < 0.3 + 0.5 * kSlowness);
      }
    }
  }
}

TEST_CASE("a rank that never joins is named when the time is over") {
  MemoryRendezvous rendezvous;
  const Result<std::shared_ptr<Engine>> engine = Engine::create(Options(), 1, Logger());
  REQUIRE(engine.ok());
  GroupSpec spec;
  spec.name = "lonely";
  spec.world = 4;
  const TimePoint start = Clock::now();
  const auto group = Group::join(*engine.value(), spec, rendezvous, start + seconds(0.3));
  CHECK(secondsSince(start) < 0.3 + 0.5 * kSlowness);
  CHECK(group.status().code() == Code::kTimeout);
  CHECK(contains(group.status(), "ranks 1, 2, 3 of 4"));
  CHECK(contains(group.status(), "'lonely'"));
  spec.rank = 2;
  MemoryRendezvous empty;
  const auto other = Group::join(*engine.value(), spec, empty, Clock::now() + seconds(0.1));
  CHECK(contains(other.status(), "rank 0 of 4"));
}

TEST_CASE("closing twice, closing unused and closing with operations in flight are in order") {
  runCluster(2, Options(), [](Member& member) {
    member.group->close();
    member.group->close();
  });
  runCluster(3, Options(), [](Member& member) {
    std::vector<float> data(1'000'000, 1);
    const auto op = member.submit(Member::allReduceDesc(data, DType::kFloat32));
    member.group->close();
    CHECK(op->done());  // whatever it became, it does not touch the memory any more
  });
}
