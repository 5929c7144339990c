#pragma once

#include "engine/engine.h"
#include "engine/group.h"

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// Ranks as threads of one process, each with an engine of its own, over real sockets on loopback.
namespace ringcomm::testing {

// Bounds on time are for a plain build; a sanitizer is slower by about this.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr double kSlowness = 4;
#else
inline constexpr double kSlowness = 1;
#endif

class MemoryRendezvous final : public Rendezvous {
 public:
  Status set(const std::string& key, const std::string& value) override {
    std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return {};
  }
  Result<std::string> get(const std::string& key, TimePoint deadline) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [&] { return values_.contains(key); })) {
      return Status(Code::kTimeout, "no " + key);
    }
    return values_[key];
  }
  Status remove(const std::string& key) override {
    std::lock_guard<std::mutex> lock(mutex_);
    values_.erase(key);
    return {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

inline Duration seconds(double amount) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(amount));
}

inline std::string rankName(int rank) { return "rank " + std::to_string(rank); }

// Where the ranks wait for each other outside of what is tested.
class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(ranks) {}
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    CHECK(changed_.wait_for(lock, std::chrono::seconds(60), [this] { return arrived_ >= ranks_; }));
  }

 private:
  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
};

// What one rank of a cluster has.
struct Member {
  int rank = 0;
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Group> group;

  std::shared_ptr<Op> submit(OpDesc desc, bool waits = false) const {
    desc.timeout = desc.timeout == Duration{} ? seconds(30) : desc.timeout;
    return group->submit(std::move(desc), {}, waits);
  }

  // How the operation ended.
  Status finish(const std::shared_ptr<Op>& op) const {
    group->wait(*op, Clock::now() + seconds(60));
    return op->done() ? op->status() : Status(Code::kInternal, "never completed");
  }

  Status call(OpDesc desc) const { return finish(submit(std::move(desc), true)); }

  template <typename T>
  Status allReduce(std::vector<T>& data, DType dtype, ReduceOp op = ReduceOp::kSum) const {
    return call(allReduceDesc(data, dtype, op));
  }

  template <typename T>
  static OpDesc allReduceDesc(std::vector<T>& data, DType dtype, ReduceOp op = ReduceOp::kSum) {
    OpDesc desc;
    desc.kind = Collective::kAllReduce;
    desc.dtype = dtype;
    desc.reduceOp = op;
    desc.count = data.size();
    desc.buffers = {{reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(T)}};
    return desc;
  }

  static OpDesc barrierDesc() {
    OpDesc desc;
    desc.kind = Collective::kBarrier;
    return desc;
  }
};

// Joins a group; empty with a failed check when that fails.
inline std::shared_ptr<Group> joinGroup(Engine& engine, Rendezvous& rendezvous,
                                        const GroupSpec& spec) {
  Result<std::shared_ptr<Group>> group =
      Group::join(engine, spec, rendezvous, Clock::now() + seconds(20));
  CHECK_MESSAGE(group.ok(), group.status().message());
  return group.ok() ? *group : nullptr;
}

// Runs `body` on every rank of a new group at the same time; gives when all have returned and left.
inline void runCluster(int world, const Options& options, const std::function<void(Member&)>& body,
                       const std::string& name = "test") {
  MemoryRendezvous rendezvous;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Member member;
      member.rank = rank;
      Result<std::shared_ptr<Engine>> engine = Engine::create(options, world, Logger());
      CHECK_MESSAGE(engine.ok(), engine.status().message());
      if (!engine.ok()) {
        return;
      }
      member.engine = *engine;
      GroupSpec spec;
      spec.name = name;
      spec.rank = rank;
      spec.world = world;
      spec.options = options;
      member.group = joinGroup(*member.engine, rendezvous, spec);
      if (member.group != nullptr) {
        body(member);
        member.group->close();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace ringcomm::testing
