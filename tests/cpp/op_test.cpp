#include "engine/op.h"

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

using namespace ringcomm;
using namespace std::chrono_literals;

namespace {

OpDesc allReduceOf(std::vector<float>& data) {
  OpDesc desc;
  desc.kind = Collective::kAllReduce;
  desc.dtype = DType::kFloat32;
  desc.reduceOp = ReduceOp::kSum;
  desc.count = data.size();
  desc.buffers = {{reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(float)}};
  desc.timeout = 5s;
  return desc;
}

OpDesc allReduceOf(std::byte* data, uint64_t bytes) {
  OpDesc desc;
  desc.kind = Collective::kAllReduce;
  desc.buffers = {{data, bytes}};
  return desc;
}

}  // namespace

TEST_CASE("a call is described in the words of the one who made it") {
  std::vector<float> data(1000);
  OpDesc desc = allReduceOf(data);
  CHECK(Op(desc, 17, Clock::now()).describe() == "all_reduce #17 (1000 x float32, sum)");
  desc.scaled = OpDesc::Scaled::kByWorld;
  CHECK(Op(desc, 0, Clock::now()).describe() == "all_reduce #0 (1000 x float32, avg)");
  desc.scaled = OpDesc::Scaled::kByFactor;
  CHECK(Op(desc, 1, Clock::now()).describe() == "all_reduce #1 (1000 x float32, premul_sum)");
  OpDesc broadcast;
  broadcast.kind = Collective::kBroadcast;
  broadcast.dtype = DType::kInt64;
  broadcast.root = 2;
  broadcast.count = 5;
  CHECK(Op(broadcast, 3, Clock::now()).describe() == "broadcast #3 (5 x int64, root 2)");
  CHECK(Op(OpDesc(), 4, Clock::now()).describe() == "barrier #4");
}

TEST_CASE("the deadline counts from the start") {
  std::vector<float> data(1);
  const TimePoint start = Clock::now();
  CHECK(Op(allReduceOf(data), 0, start).deadline() == start + 5s);
}

TEST_CASE("it is done with its last share, told once, with the first failure") {
  std::vector<float> data(1);
  Op op(allReduceOf(data), 0, Clock::now());
  int told = 0;
  op.onDone([&](Op& done) {
    ++told;
    CHECK(done.done());
    CHECK(done.status().message() == "first");
  });
  op.expectShares(3);
  op.completeShare({});
  op.completeShare({Code::kPeerLost, "first", 1});
  CHECK_FALSE(op.done());
  CHECK(told == 0);
  op.completeShare({Code::kAborted, "second"});
  CHECK(op.done());
  CHECK(told == 1);
  CHECK(op.status().code() == Code::kPeerLost);
  CHECK(op.status().rank() == 1);
}

TEST_CASE("waiting ends with the time or with the operation, whichever is first") {
  std::vector<float> data(1);
  Op op(allReduceOf(data), 0, Clock::now());
  const TimePoint start = Clock::now();
  CHECK_FALSE(op.waitUntil(start + 30ms));
  CHECK(Clock::now() >= start + 30ms);
  std::thread finisher([&] {
    std::this_thread::sleep_for(30ms);
    op.completeShare({});
  });
  CHECK(op.waitUntil(Clock::now() + 20s));
  CHECK(secondsSince(start) < 2);
  CHECK(op.waitUntil(Clock::now() - 1s));
  finisher.join();
}

TEST_CASE("shares that end on several threads complete it once") {
  for (int round = 0; round < 200; ++round) {
    std::vector<float> data(1);
    Op op(allReduceOf(data), 0, Clock::now());
    std::atomic<int> told{0};
    op.onDone([&](Op&) { ++told; });
    op.expectShares(3);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] { op.completeShare({}); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK(told == 1);
    CHECK(op.status().ok());
  }
}

TEST_CASE("operations overlap when any of their bytes are common, and not when they only touch") {
  std::vector<std::byte> memory(100);
  const auto op = [&](size_t from, size_t bytes) {
    return Op(allReduceOf(memory.data() + from, bytes), 0, Clock::now());
  };
  CHECK(op(0, 50).overlaps(op(49, 10)));
  CHECK(op(49, 10).overlaps(op(0, 50)));
  CHECK(op(10, 5).overlaps(op(0, 100)));
  CHECK_FALSE(op(0, 50).overlaps(op(50, 10)));
  CHECK_FALSE(op(50, 10).overlaps(op(0, 50)));
  CHECK_FALSE(op(0, 0).overlaps(op(50, 10)));
}

TEST_CASE("an operation may start when all that it comes after are done, or gone") {
  std::vector<float> data(1);
  const auto make = [&] { return std::make_shared<Op>(allReduceOf(data), 0, Clock::now()); };
  const auto first = make();
  auto second = make();
  const auto third = make();
  CHECK(third->mayStart());
  CHECK_FALSE(first->awaited());
  third->startAfter(first);
  third->startAfter(second);
  CHECK(first->awaited());
  CHECK_FALSE(third->mayStart());
  first->completeShare({});
  CHECK_FALSE(third->mayStart());
  second->completeShare({});
  second.reset();
  CHECK(third->mayStart());
}
