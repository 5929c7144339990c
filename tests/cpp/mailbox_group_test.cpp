#include "cluster.h"
#include "engine/mailbox.h"
#include "messages.h"

#include <doctest/doctest.h>

using namespace ringcomm;
using namespace ringcomm::testing;
using namespace std::chrono_literals;

// Messages in groups whose ranks leave, and in great numbers.

TEST_CASE("a receive from anybody outlives those who leave in order, but the last") {
  runCluster(3, Options(), [](Member& member) {
    Bytes data = message(10, 1);
    if (member.rank != 0) {
      CHECK(member.call(sendOf(data, 0, 1)).ok());
      CHECK(member.call(Member::barrierDesc()).ok());
      if (member.rank == 1) {
        std::this_thread::sleep_for(100ms);
        CHECK(member.call(sendOf(data, 0, 2)).ok());
      }
      return;
    }
    Bytes target(10);
    CHECK(member.call(receiveInto(target, 1, 1)).ok());
    CHECK(member.call(receiveInto(target, 2, 1)).ok());
    const auto any = member.submit(receiveInto(target, kAnyPeer, 2));
    CHECK(member.call(Member::barrierDesc()).ok());
    CHECK(member.finish(any).ok());
    CHECK(any->source() == 1);
    const TimePoint start = Clock::now();
    const Status status = member.call(receiveInto(target, kAnyPeer, 2));
    CHECK(status.code() == Code::kPeerLost);
    CHECK(status.message().find("left") != std::string::npos);
    CHECK(Clock::now() - start < seconds(2 * kSlowness));
  });
}

TEST_CASE("a receive from anybody goes on without those who left before there was a lane to them") {
  // Who receives, who sends, and who leaves at once, before or after all are connected.
  struct Roles {
    int receiver;
    int sender;
    int leaver;
    bool connected;
  };
  for (const Roles& roles :
       {Roles{0, 1, 2, true}, Roles{2, 1, 0, true}, Roles{1, 2, 0, false}, Roles{0, 1, 2, false}}) {
    CAPTURE(roles.receiver);
    CAPTURE(roles.connected);
    runCluster(3, Options(), [&](Member& member) {
      Bytes data = message(10, 1);
      if (roles.connected) {
        CHECK(member.call(Member::barrierDesc()).ok());
      }
      if (member.rank == roles.leaver) {
        return;
      }
      std::this_thread::sleep_for(100ms);
      if (member.rank == roles.sender) {
        std::this_thread::sleep_for(2s);
        CHECK(member.call(sendOf(data, roles.receiver, 1)).ok());
        return;
      }
      Bytes target(10);
      const auto any = member.submit(receiveInto(target, kAnyPeer, 1));
      const Status first = member.finish(any);
      CAPTURE(first.message());
      REQUIRE(first.ok());
      CHECK(any->source() == roles.sender);
      CHECK(target == data);
      const TimePoint start = Clock::now();
      const Status status = member.call(receiveInto(target, kAnyPeer, 1));
      CAPTURE(status.message());
      CHECK(status.code() == Code::kPeerLost);
      CHECK(status.message().find(rankName(roles.sender)) != std::string::npos);
      CHECK(status.message().find("left") != std::string::npos);
      if (roles.connected) {
        CHECK(status.message().find(rankName(roles.leaver)) != std::string::npos);
      }
      CHECK(Clock::now() - start < seconds(2 * kSlowness));
    });
  }
}

TEST_CASE("many small messages that nobody waits for are taken in any order, in time") {
  const int count = static_cast<int>(60'000 / kSlowness);
  runCluster(2, Options(), [&](Member& member) {
    std::vector<Bytes> data(static_cast<size_t>(count));
    std::vector<std::shared_ptr<Op>> ops;
    const TimePoint start = Clock::now();
    for (int i = 0; i < count; ++i) {
      data[static_cast<size_t>(i)] = member.rank == 0 ? message(static_cast<size_t>(i % 3), 1)
                                                      : Bytes(static_cast<size_t>(i % 3));
    }
    if (member.rank == 1) {
      CHECK(member.call(Member::barrierDesc()).ok());
      for (int i = count - 1; i >= 0; --i) {
        ops.push_back(member.submit(receiveInto(data[static_cast<size_t>(i)], 0, i)));
      }
    } else {
      for (int i = 0; i < count; ++i) {
        ops.push_back(member.submit(sendOf(data[static_cast<size_t>(i)], 1, i)));
      }
      CHECK(member.call(Member::barrierDesc()).ok());
    }
    int failures = 0;
    for (const auto& op : ops) {
      failures += member.finish(op).ok() ? 0 : 1;
    }
    CHECK(failures == 0);
    CHECK(data[2] == message(2, 1));
    CHECK(data[static_cast<size_t>(count - 1)] == message(static_cast<size_t>((count - 1) % 3), 1));
    CHECK(Clock::now() - start < seconds(10));
  });
}
