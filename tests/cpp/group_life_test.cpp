#include "endings.h"
#include "messages.h"

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

using namespace ringcomm;
using namespace ringcomm::testing;

TEST_CASE("secrets that differ end the meeting at once, on both ranks, with the reason") {
  for (const bool oneHasNone : {false, true}) {
    MemoryRendezvous rendezvous;
    std::vector<std::thread> threads;
    std::vector<Status> statuses(2);
    const TimePoint start = Clock::now();
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        GroupSpec spec;
        spec.name = "secrets";
        spec.rank = rank;
        spec.world = 2;
        spec.options.secret = rank == 0 ? "one" : oneHasNone ? "" : "another";
        const auto engine = Engine::create(spec.options, 2, Logger());
        const auto group =
            Group::join(*engine.value(), spec, rendezvous, Clock::now() + seconds(20));
        statuses[static_cast<size_t>(rank)] = group.status();
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK(secondsSince(start) < 1 * kSlowness);
    for (const Status& status : statuses) {
      CAPTURE(status.message());
      CHECK_FALSE(status.ok());
      CHECK(contains(status, "to the same value on all ranks"));
    }
    CHECK(contains(statuses[0], "rank 1 cannot join"));
  }
}

TEST_CASE("groups of one name can follow each other over the same store, in the same processes") {
  constexpr int kRounds = 10;
  MemoryRendezvous rendezvous;
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto engine = Engine::create(Options(), 2, Logger());
      for (int round = 0; round < kRounds; ++round) {
        GroupSpec spec;
        spec.name = "again";
        spec.rank = rank;
        spec.world = 2;
        Member member{rank, engine.value(), joinGroup(*engine.value(), rendezvous, spec)};
        std::vector<int32_t> data(100, rank + 1);
        right += member.allReduce(data, DType::kInt32).ok() && data[99] == 3 ? 1 : 0;
        member.group->close();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(right == 2 * kRounds);
}

TEST_CASE("an operation that waits for a rank to dial learns that the rank has left instead") {
  runCluster(2, Options(), [](Member& member) {
    if (member.rank == 0) {
      // Point-to-point brings the control link up, but no lane for collectives.
      Bytes word(1);
      CHECK(member.call(receiveInto(word, 1)).ok());
      return;  // and leaves
    }
    Bytes word(1);
    CHECK(member.call(sendOf(word, 0)).ok());
    std::vector<float> data(1, 7);
    const TimePoint start = Clock::now();
    const Status status = member.allReduce(data, DType::kFloat32);
    CAPTURE(status.message());
    CHECK(status.code() == Code::kPeerLost);
    CHECK(contains(status, "rank 0"));
    CHECK(secondsSince(start) < 2 * kSlowness);
  });
}
