#include "coll/select.h"
#include "sim.h"

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <string>

// The simulator has to see each kind of broken plan; what it does not see, no other test would.
using namespace ringcomm;
using namespace ringcomm::sim;

namespace {

constexpr int kWorld = 4;
constexpr uint64_t kCount = 200;
constexpr uint16_t kTable = 1 + 2 * kWorld;  // the longest table of buffers

const Element kBytes = {
    1, [](uint8_t* dst, const uint8_t* src) { *dst = static_cast<uint8_t>(*dst * 5 + *src); },
    [](uint8_t* dst) { *dst = static_cast<uint8_t>(*dst * 3 + 7); }};

CollectiveSpec specOf(Collective kind) {
  CollectiveSpec spec;
  spec.kind = kind;
  spec.world = kWorld;
  spec.count = kCount;
  spec.root = 1;
  spec.blockBytes.assign(kWorld, kCount);
  spec.sendBytes.assign(kWorld, kCount);
  spec.recvBytes.assign(kWorld, kCount);
  return spec;
}

Plans plansNamed(Collective kind, const char* name) {
  return plansOf(**findAlgorithm(kind, name), specOf(kind));
}

std::vector<RankOp> operation(Plans plans) {
  std::vector<RankOp> ranks;
  for (Plan& plan : plans) {
    const auto rank = static_cast<uint8_t>(ranks.size());
    std::vector<Bytes> buffers(1);
    buffers.resize(kTable, Bytes(kCount, static_cast<uint8_t>(rank * 31 + 1)));
    ranks.push_back({std::move(plan), std::move(buffers)});
  }
  return ranks;
}

struct Outcome {
  std::string error;
  Bytes data;  // kData of rank 0
};

Outcome outcome(Plans plans, uint64_t seed, uint64_t capacity = 5) {
  Simulation simulation(kWorld, kBytes, seed, capacity);
  const size_t op = simulation.add(operation(std::move(plans)));
  Outcome result;
  result.error = simulation.run();
  result.data = simulation.buffer(op, 0, kData);
  return result;
}

void changeSteps(Plans& plans, const std::function<bool(const Step&)>& which,
                 const std::function<void(Step&)>& change) {
  for (Plan& plan : plans) {
    for (Step& step : plan.steps) {
      if (which(step)) change(step);
    }
  }
}

// The error that comes up in most of 20 runs has to contain these words, and none may pass.
void checkFails(const Plans& plans, const std::string& words, uint64_t capacity = 5) {
  int seen = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::string error = outcome(plans, seed, capacity).error;
    CAPTURE(seed);
    CHECK(error != "");
    if (error.find(words) != std::string::npos) ++seen;
  }
  CAPTURE(words);
  CHECK(seen > 10);
}

bool sends(const Step& step) { return step.kind == StepKind::kSend; }

}  // namespace

TEST_CASE("simulator: a finish that is missing or doubled changes the result") {
  for (const char* name : {"ring", "direct", "scatter-gather"}) {
    const Plans right = plansNamed(Collective::kAllReduce, name);
    const Outcome expected = outcome(right, 1);
    REQUIRE(expected.error == "");
    Plans missing = right;
    changeSteps(missing, [](const Step& s) { return s.finish; }, [](Step& s) { s.finish = false; });
    CHECK(outcome(missing, 1).data != expected.data);
    Plans doubled = right;
    changeSteps(
        doubled, [](const Step& s) { return s.kind == StepKind::kRecvReduce; },
        [](Step& s) { s.finish = true; });
    CHECK((outcome(doubled, 1).data != expected.data) == (std::string(name) == "ring"));
  }
}

TEST_CASE("simulator: a send that does not wait for what it sends is written over") {
  Plans ring = plansNamed(Collective::kAllReduce, "ring");
  changeSteps(ring, sends, [](Step& s) { s.follow = -1; });
  checkFails(ring, "writes over what step");
  Plans middle = plansNamed(Collective::kAllReduce, "scatter-gather");
  changeSteps(middle, sends, [](Step& s) { s.after = 0; });
  checkFails(middle, "writes over what step");
}

TEST_CASE("simulator: a reduction that does not wait for the sends is seen") {
  Plans plans = plansNamed(Collective::kAllReduce, "direct");
  for (Plan& plan : plans) {
    // The sends move behind the arrivals and the copy, for which alone the reduction waits now.
    std::rotate(plan.steps.begin(), plan.steps.begin() + kWorld - 1, plan.steps.end() - 1);
    plan.steps.back().after = kWorld;
  }
  checkFails(plans, "writes over what step", 3);
}

TEST_CASE("simulator: a receive that does not wait for its slot of scratch is seen") {
  CollectiveSpec spec = specOf(Collective::kReduce);
  spec.count = uint64_t{1} << 22;  // eight pieces through three slots
  Plans plans = plansOf(**findAlgorithm(Collective::kReduce, "chain"), spec);
  const auto waits = [](const Step& s) { return isReceive(s) && s.after > 0; };
  changeSteps(plans, waits, [](Step& s) { s.after = 0; });
  int seen = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    std::vector<RankOp> ranks;
    for (Plan& plan : Plans(plans)) {
      ranks.push_back({std::move(plan), std::vector<Bytes>(kTable, Bytes(spec.count))});
    }
    Simulation simulation(kWorld, kBytes, seed, 1 << 20);
    simulation.add(std::move(ranks));
    if (simulation.run().find("writes over what step") != std::string::npos) ++seen;
  }
  CHECK(seen > 1);
}

TEST_CASE("simulator: messages that do not match are seen") {
  Plans shorter = plansNamed(Collective::kAllGather, "ring");
  changeSteps(
      shorter, [](const Step& s) { return sends(s) && s.follow == -1; },
      [](Step& s) { s.bytes -= 1; });
  checkFails(shorter, "expects 200 bytes");
  CHECK(hopsOf(shorter) == -1);

  Plans extra = plansNamed(Collective::kAllGather, "direct");
  Step more = extra[1].steps[0];
  more.bytes = 0;
  extra[1].steps.push_back(more);
  checkFails(extra, "left over");
  CHECK(hopsOf(extra) == -1);

  Plans fewer = plansNamed(Collective::kAllGather, "direct");
  REQUIRE(sends(fewer[2].steps[0]));
  fewer[2].steps.erase(fewer[2].steps.begin());
  checkFails(fewer, "deadlock");
}

TEST_CASE("simulator: a circle of waiting is seen, and one that only a full stream closes") {
  Plans circle = plansNamed(Collective::kAllGather, "direct");
  for (Plan& plan : circle) {
    std::stable_partition(plan.steps.begin(), plan.steps.end(), isReceive);
    for (Step& step : plan.steps) {
      if (sends(step)) step.after = kWorld - 1;
    }
  }
  checkFails(circle, "deadlock", kUnbounded);
  CHECK(hopsOf(circle) == -1);

  Plans full = plansNamed(Collective::kAllGather, "direct");
  for (Plan& plan : full) {
    std::stable_partition(plan.steps.begin(), plan.steps.end(), sends);
    for (Step& step : plan.steps) {
      if (isReceive(step)) step.after = kWorld - 1;
    }
  }
  checkFails(full, "deadlock", kCount);
  CHECK(outcome(full, 1, kUnbounded).error == "");
  CHECK(hopsOf(full) == 1);
}

TEST_CASE("simulator: steps that cannot be right are seen before anything runs") {
  const Plans right = plansNamed(Collective::kAllReduce, "ring");
  const auto broken = [&](const std::function<void(Step&)>& change) {
    Plans plans = right;
    change(plans[3].steps[2]);  // a send that follows step 1
    return outcome(plans, 1).error;
  };
  REQUIRE(right[3].steps[2].follow == 1);
  const auto contains = [](const std::string& text, const char* words) {
    CAPTURE(text);
    CAPTURE(words);
    CHECK(text.find(words) != std::string::npos);
  };
  contains(broken([](Step& s) { s.follow = 2; }), "rank 3 step 2 follows no step");
  contains(broken([](Step& s) { s.follow = 0; }), "follows something else");
  contains(broken([](Step& s) { s.bytes += 1; }), "follows something else");
  contains(broken([](Step& s) { s.after = 3; }), "waits for itself");
  contains(broken([](Step& s) { s.peer = 3; }), "has no peer");
  contains(broken([](Step& s) { s.finish = true; }), "finishes what it does not reduce");
  contains(broken([](Step& s) { s.follow = -1, s.src.offset = kCount - 1; }), "leaves its buffer");
  contains(broken([](Step& s) { s.follow = -1, s.src.offset = ~uint64_t{0}; }),
           "leaves its buffer");
  contains(broken([](Step& s) { s.follow = -1, s.src.buffer = 99; }), "does not exist");
}

TEST_CASE("simulator: a barrier whose rounds do not wait lets ranks go too early") {
  Plans plans = plansNamed(Collective::kBarrier, "dissemination");
  changeSteps(plans, sends, [](Step& s) { s.after = 0; });
  Simulation simulation(kWorld, kBytes, 1, kUnbounded);
  const size_t op = simulation.add(operation(plans));
  simulation.hold(2, true);
  REQUIRE(simulation.run() == "");
  // Only the ranks one and two places on hear from rank 2 directly.
  CHECK(simulation.complete(op, 1));
}

TEST_CASE("different collectives queued behind each other on the same streams") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const uint64_t capacities[] = {1, 3, 100, kUnbounded};
    const uint64_t capacity = capacities[random.below(4)];
    Simulation simulation(kWorld, kBytes, seed, capacity);
    std::vector<Plans> queued;
    for (int i = 0; i < 8; ++i) {
      const auto kind = static_cast<Collective>(random.below(kCollectiveCount));
      Tuning tuning;
      if (random.below(2) == 0) {
        REQUIRE(forceAlgorithms("all_reduce=ring,reduce=chain,broadcast=chain,all_gather=ring,"
                                "reduce_scatter=ring,barrier=dissemination",
                                tuning)
                    .ok());
      }
      queued.push_back(plansOf(chooseAlgorithm(specOf(kind), tuning), specOf(kind)));
      simulation.add(operation(queued.back()));
    }
    CAPTURE(seed);
    REQUIRE(simulation.run() == "");
    for (size_t op = 0; op < queued.size(); ++op) {
      // Alone, and with all the room there is, the same comes out.
      Simulation alone(kWorld, kBytes, 1, kUnbounded);
      alone.add(operation(queued[op]));
      REQUIRE(alone.run() == "");
      for (int rank = 0; rank < kWorld; ++rank) {
        for (uint16_t i = kData; i < kTable; ++i) {
          REQUIRE(simulation.buffer(op, rank, i) == alone.buffer(0, rank, i));
        }
      }
    }
  }
}
