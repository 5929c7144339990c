#include "calls.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <random>

using namespace ringcomm;
using namespace ringcomm::testing;

namespace {

// What all ranks draw alike: the calls of one group, in order.
std::vector<CallShape> drawCalls(std::mt19937_64& random, int world, int count) {
  constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kInt32,
                              DType::kInt64,   DType::kInt16,   DType::kUInt8};
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct};
  constexpr size_t kSizes[] = {8, 300, 5000, 40000};
  std::vector<CallShape> shapes;
  for (int i = 0; i < count; ++i) {
    CallShape shape;
    shape.dtype = kTypes[random() % std::size(kTypes)];
    shape.count = random() % kSizes[random() % std::size(kSizes)];
    shape.salt = random() % 1000;
    shape.uneven = random() % 2 == 0;
    shape.kind = static_cast<Collective>(random() % kCollectiveCount);
    switch (shape.kind) {
      case Collective::kAllReduce:
      case Collective::kReduceScatter:
      case Collective::kReduce:
        shape.op = kOps[random() % std::size(kOps)];
        [[fallthrough]];
      case Collective::kBroadcast:
      case Collective::kGather:
      case Collective::kScatter:
        shape.root = static_cast<int>(random() % static_cast<uint64_t>(world));
        break;
      case Collective::kAllGather:
      case Collective::kAllToAll:
      case Collective::kBarrier:
        break;
    }
    shapes.push_back(shape);
  }
  return shapes;
}

// What a rank does of its own: how long operations stay in flight, how it waits, when it pauses.
class Habits {
 public:
  explicit Habits(uint64_t seed) : random_(seed) {}
  bool waitsNow() { return random_() % 3 == 0; }
  size_t flight() { return random_() % 12; }
  void maybePause() {
    if (random_() % 40 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 3000));
    }
  }

 private:
  std::mt19937_64 random_;
};

struct Tally {
  std::atomic<int> calls{0};
  std::atomic<int> failures{0};
  std::atomic<size_t> wrong{0};
  std::mutex mutex;
  std::string first;

  void note(const Call& call, const CallShape& shape, const Status& status) {
    ++calls;
    const size_t bad = status.ok() ? call.wrong() : 0;
    failures += status.ok() ? 0 : 1;
    wrong += bad;
    if (!status.ok() || bad > 0) {
      std::lock_guard<std::mutex> lock(mutex);
      if (first.empty()) {
        first = shape.text() + ": " + status.message();
      }
    }
  }
};

// One thread of one rank: all calls of one group.
void callAll(const Member& member, const std::vector<CallShape>& shapes, int world, uint64_t seed,
             Tally& tally) {
  struct Flying {
    std::unique_ptr<Call> call;
    const CallShape* shape;
    std::shared_ptr<Op> op;
  };
  Habits habits(seed);
  std::deque<Flying> flying;
  const auto land = [&] {
    Flying& oldest = flying.front();
    tally.note(*oldest.call, *oldest.shape, member.finish(oldest.op));
    flying.pop_front();
  };
  for (const CallShape& shape : shapes) {
    habits.maybePause();
    auto call = std::make_unique<Call>(shape, member.rank, world);
    const bool waits = habits.waitsNow();
    auto op = member.submit(call->desc(), waits);
    if (waits) {
      tally.note(*call, shape, member.finish(op));
    } else {
      flying.push_back({std::move(call), &shape, std::move(op)});
    }
    for (const size_t limit = habits.flight(); flying.size() > limit;) {
      land();
    }
  }
  while (!flying.empty()) {
    land();
  }
}

struct Scale {
  int world;
  int groups;
  int calls;
};

// Every rank drives `groups` groups over one engine at the same time, a thread for each.
void stress(uint64_t seed, const Scale& scale) {
  std::mt19937_64 random(seed);
  std::vector<Options> options(static_cast<size_t>(scale.groups));
  std::vector<std::vector<CallShape>> shapes;
  constexpr int64_t kSlices[] = {4096, 65536, 262144, 1048576};
  const auto loops = static_cast<int64_t>(1 + random() % 3);
  for (Options& each : options) {
    each.lanes = static_cast<int64_t>(1 + random() % 3);
    each.progressThreads = loops;
    each.sliceBytes = kSlices[random() % std::size(kSlices)];
    shapes.push_back(drawCalls(random, scale.world, scale.calls));
  }
  Tally tally;
  MemoryRendezvous rendezvous[3];
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < scale.world; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto engine = Engine::create(options[0], scale.world, Logger());
      CHECK(engine.ok());
      std::vector<std::thread> threads;
      for (size_t g = 0; g < options.size(); ++g) {
        threads.emplace_back([&, g] {
          GroupSpec spec;
          spec.name = "stress" + std::to_string(g);
          spec.rank = rank;
          spec.world = scale.world;
          spec.options = options[g];
          Member member{rank, engine.value(), joinGroup(*engine.value(), rendezvous[g], spec)};
          callAll(member, shapes[g], scale.world, seed + static_cast<uint64_t>(rank) * 97 + g,
                  tally);
          // Leaving while others are still at it would be news to them.
          CHECK(member.call(Member::barrierDesc()).ok());
          member.group->close();
        });
      }
      for (std::thread& thread : threads) {
        thread.join();
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  CAPTURE(tally.first);
  CHECK(tally.failures == 0);
  CHECK(tally.wrong == 0);
  CHECK(tally.calls == scale.world * scale.groups * scale.calls);
}

}  // namespace

TEST_CASE("random calls over several groups, lanes and loops at once come out right") {
  const char* given = std::getenv("RINGCOMM_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::stoull(given) : std::random_device{}();
  INFO("RINGCOMM_TEST_SEED=" << seed);
  const int calls = static_cast<int>(1000 / kSlowness);
  stress(seed, {2, 3, calls});
  stress(seed + 1, {3, 2, calls});
  stress(seed + 2, {5, 2, calls / 2});
}

TEST_CASE("groups come and go while another one works") {
  MemoryRendezvous steady;
  MemoryRendezvous passing;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Options options;
      options.lanes = 2;
      options.progressThreads = 2;
      const auto engine = Engine::create(options, 2, Logger());
      GroupSpec spec;
      spec.rank = rank;
      spec.world = 2;
      spec.options = options;
      spec.name = "steady";
      Member member{rank, engine.value(), joinGroup(*engine.value(), steady, spec)};
      for (int round = 0; round < 20; ++round) {
        std::vector<double> large(200'000, 1);
        const auto op = member.submit(Member::allReduceDesc(large, DType::kFloat64));
        spec.name = "passing" + std::to_string(round);
        // Keys are per group in use; here one rendezvous serves all, so each gets its own.
        struct Prefixed final : Rendezvous {
          Status set(const std::string& key, const std::string& value) override {
            return inner->set(prefix + key, value);
          }
          Result<std::string> get(const std::string& key, TimePoint deadline) override {
            return inner->get(prefix + key, deadline);
          }
          Status remove(const std::string& key) override { return inner->remove(prefix + key); }
          Rendezvous* inner = nullptr;
          std::string prefix;
        } rendezvous;
        rendezvous.inner = &passing;
        rendezvous.prefix = spec.name + "/";
        Member brief{rank, engine.value(), joinGroup(*engine.value(), rendezvous, spec)};
        std::vector<int32_t> small(10, rank + 1);
        CHECK(brief.allReduce(small, DType::kInt32).ok());
        CHECK(small[9] == 3);
        brief.group->close();
        CHECK(member.finish(op).ok());
        CHECK(std::count(large.begin(), large.end(), 2.0) == 200'000);
      }
      CHECK(member.call(Member::barrierDesc()).ok());
      member.group->close();
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
}
