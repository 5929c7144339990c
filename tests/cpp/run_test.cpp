#include "engine/run.h"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

using namespace ringcomm;

namespace {

Step stepOf(StepKind kind, uint64_t bytes, uint32_t after = 0) {
  Step step;
  step.kind = kind;
  step.peer = 1;
  step.bytes = bytes;
  step.after = after;
  step.dst.buffer = step.src.buffer = kData;
  return step;
}

// A run over `data` as its one buffer.
Run runOf(Plan plan, std::vector<float>& data, ReduceOp op = ReduceOp::kSum, int world = 2) {
  const auto memory = Buffer{reinterpret_cast<std::byte*>(data.data()), data.size() * 4};
  OpDesc desc;
  desc.kind = Collective::kAllReduce;
  desc.buffers = {memory};
  Run::Setup setup;
  setup.op = std::make_shared<Op>(desc, 0, Clock::now());
  setup.plan = std::move(plan);
  setup.buffers = {memory};
  setup.kernel = findKernel(DType::kFloat32, op, Isa::kScalar);
  setup.elementSize = 4;
  setup.world = world;
  return Run(std::move(setup));
}

}  // namespace

TEST_CASE("a step may start when all of the plan before its `after` is complete, in any order") {
  std::vector<float> data(4);
  Plan plan;
  plan.steps = {stepOf(StepKind::kRecv, 8), stepOf(StepKind::kSend, 8),
                stepOf(StepKind::kRecv, 8, 2)};
  Run run = runOf(std::move(plan), data);
  CHECK(run.mayStart(0));
  CHECK(run.mayStart(1));
  CHECK_FALSE(run.mayStart(2));
  run.complete(1);
  CHECK_FALSE(run.mayStart(2));
  CHECK(run.firstOpenStep() == 0);
  run.complete(0);
  CHECK(run.mayStart(2));
  CHECK(run.firstOpenStep() == 2);
  CHECK_FALSE(run.done());
  run.complete(2);
  CHECK(run.done());
}

TEST_CASE("a send that follows has what the step before it has got") {
  std::vector<float> data(4, 1);
  Plan plan;
  plan.steps = {stepOf(StepKind::kRecvReduce, 16), stepOf(StepKind::kSend, 16)};
  plan.steps[1].follow = 0;
  Run run = runOf(std::move(plan), data);
  CHECK(run.available(1) == 0);
  const float received[3] = {10, 20, 30};
  run.reduceReceived(0, reinterpret_cast<const std::byte*>(received), 12);
  CHECK(run.available(1) == 12);
  CHECK(run.moved(0) == 12);
  CHECK(data == std::vector<float>{11, 21, 31, 1});
  run.reduceReceived(0, reinterpret_cast<const std::byte*>(received), 4);
  CHECK(data[3] == 11);
  CHECK(run.available(1) == 16);
}

TEST_CASE("AVG divides with the last reduction and no sooner") {
  std::vector<float> data = {1, 2};
  Plan plan;
  plan.steps = {stepOf(StepKind::kRecvReduce, 8), stepOf(StepKind::kRecvReduce, 8)};
  plan.steps[1].finish = true;
  Run run = runOf(std::move(plan), data, ReduceOp::kAvg, 3);
  const float received[2] = {4, 5};
  run.reduceReceived(0, reinterpret_cast<const std::byte*>(received), 8);
  CHECK(data == std::vector<float>{5, 7});
  run.reduceReceived(1, reinterpret_cast<const std::byte*>(received), 8);
  CHECK(data == std::vector<float>{3, 4});
}

TEST_CASE("local steps go in bounded pieces of whole elements and give the plan's result") {
  // Parts in scratch 0 and 1, copied there from the data, are added back into it.
  std::vector<float> data(1000);
  std::iota(data.begin(), data.end(), 0.0f);
  const uint64_t bytes = data.size() * 4;
  Plan plan;
  plan.scratchBytes = 2 * bytes;
  Step toFirst = stepOf(StepKind::kCopy, bytes);
  toFirst.dst = {kScratch, 0};
  Step toSecond = stepOf(StepKind::kCopy, bytes);
  toSecond.dst = {kScratch, bytes};
  Step reduce = stepOf(StepKind::kReduce, bytes, 2);
  reduce.src = {kScratch, 0};
  reduce.parts = 2;
  plan.steps = {toFirst, toSecond, reduce};
  for (const uint64_t budget : {uint64_t{1}, uint64_t{7}, uint64_t{1000}, uint64_t{1} << 30}) {
    CAPTURE(budget);
    std::vector<float> mine = data;
    Run run = runOf(plan, mine);
    int calls = 1;
    while (run.workLocally(budget)) {
      ++calls;
    }
    CHECK(run.done());
    const uint64_t piece = std::max(budget / 4, uint64_t{1}) * 4;
    CHECK(calls >= static_cast<int>(std::min(3 * bytes / piece, uint64_t{1000})));
    for (size_t i = 0; i < mine.size(); ++i) {
      REQUIRE(mine[i] == 2 * data[i]);
    }
  }
}

TEST_CASE("local steps wait for what they come after") {
  std::vector<float> data(2, 5);
  Plan plan;
  plan.scratchBytes = 8;
  Step copy = stepOf(StepKind::kCopy, 8, 1);
  copy.dst = {kScratch, 0};
  plan.steps = {stepOf(StepKind::kRecv, 8), copy};
  Run run = runOf(std::move(plan), data);
  CHECK_FALSE(run.workLocally(100));
  CHECK_FALSE(run.completed(1));
  run.complete(0);
  CHECK_FALSE(run.workLocally(100));
  CHECK(run.done());
}
