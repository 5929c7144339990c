#pragma once

#include "base/elastic_pool.h"
#include "engine/group.h"
#include "torch/compat.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringcomm {

// One call of the backend, from the call to its completion: one operation of the engine, or several
// for a coalesced call.
//
// The progress thread that completes the last operation ends the work: waiters and is_completed()
// depend on nothing else. Results for tensors of another layout are copied back by a waiter or,
// where there is none, by the completers' pool. The pool also completes the Future, whose callbacks
// may wait for further collectives. Methods may be called from any thread.
class RingWork final : public c10d::Work {
 public:
  struct Call {
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;       // of the profiler's event; static
    std::vector<at::Tensor> inputs;    // what the profiler shows
    std::vector<at::Tensor> outputs;   // what result() and the Future give
    std::vector<at::Tensor> held;      // memory that the operation uses besides
    std::function<void()> epilogue;    // after success, before anybody is told; may be null
    int peer = kAnyPeer;               // of a point-to-point transfer
    std::vector<int64_t> inputSplits;  // of an all_to_all: the elements for each rank
    std::vector<int64_t> outputSplits;
    std::chrono::milliseconds timeout{};
    std::optional<uint64_t> recorded;  // its number in the flight recorder
  };

  RingWork(std::shared_ptr<Group> group, ElasticPool& completers, Call call);

  // Until it has ended, whatever the result.
  void waitEnd();
  bool copies() const { return copies_; }

  // Starts the operations, at least one; with `sync` gives when they are done, whatever the result.
  void start(std::vector<OpDesc> descs, bool sync);

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  void abort() override;
  std::vector<at::Tensor> result() override;
  int sourceRank() const override { return ops_[0]->source(); }
  uint64_t getSequencenumber() const override { return ops_[0]->sequence(); }
  // In milliseconds, from the call to its completion.
  float getDuration() const override;
  std::chrono::milliseconds getTimeout() const RC_OVERRIDE_2_14 { return call_.timeout; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;

 private:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  void onOpDone(const Op& op);
  void succeed();
  void copyBack();
  bool waitUntil(TimePoint until);
  void conclude(const Status& status, const std::string& doing);
  void tellRecorder(const Status& status) const;
  void letGo();
  FuturePtr futureIn(FuturePtr& slot, const c10::TypePtr& type,
                     void (RingWork::*resolve)(const FuturePtr&) const);
  void resolve(const FuturePtr& future) const;
  void resolveResult(const FuturePtr& future) const;

  const std::shared_ptr<Group> group_;
  ElasticPool& completers_;
  Call call_;
  std::vector<std::shared_ptr<Op>> ops_;  // complete when start() returns
  std::atomic<size_t> running_{0};
  const TimePoint started_ = Clock::now();
  const bool copies_;  // results have to be copied back
  bool sync_ = false;  // start() waits; set before it starts
  // Guarded by mutex_ of the base class.
  Status status_;
  TimePoint ended_;
  int source_ = kAnyPeer;
  std::string failed_;      // the operation that status_ is about
  bool arrived_ = false;    // only copying back is left
  bool copying_ = false;    // and somebody does it
  bool concluded_ = false;  // the outcome is certain; completed_ follows at once
  FuturePtr future_;
  FuturePtr futureResult_;
};

// The works that may still have results to copy back. A barrier orders what comes after it behind
// them; its own operation knows of operations only. Methods may be called from any thread.
class CopyingWorks {
 public:
  void add(const c10::intrusive_ptr<RingWork>& work) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(works_, [](const auto& earlier) {
      const auto alive = earlier.lock();
      return alive == nullptr || alive->isCompleted();
    });
    works_.emplace_back(work);
  }

  std::vector<c10::intrusive_ptr<RingWork>> pending() const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<c10::intrusive_ptr<RingWork>> pending;
    for (const auto& work : works_) {
      if (auto alive = work.lock(); alive != nullptr && !alive->isCompleted()) {
        pending.push_back(std::move(alive));
      }
    }
    return pending;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<RingWork>> works_;
};

}  // namespace ringcomm
