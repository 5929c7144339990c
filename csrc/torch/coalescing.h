#pragma once

#include "base/clock.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

// Calls between startCoalescing() and endCoalescing(). Each starts at once, as ever, and has a Work
// of its own; what is added is one Work for all of them. Included by backend.cpp only.
namespace ringcomm {

// Several works as one; maybe none. Methods may be called from any thread.
class JoinedWork final : public c10d::Work {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  JoinedWork(int rank, std::vector<WorkPtr> works)
      : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(),
                       [](auto& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(), [](auto& work) { return work->isSuccess(); });
  }
  std::exception_ptr exception() const override {
    for (const WorkPtr& work : works_) {
      if (const auto error = work->exception()) {
        return error;
      }
    }
    return nullptr;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    const TimePoint until = Clock::now() + timeout;
    for (const WorkPtr& work : works_) {
      // 0 would mean no limit.
      const std::chrono::milliseconds left(std::max<int64_t>(toMillis(until - Clock::now()), 1));
      work->wait(timeout > kNoTimeout ? left : kNoTimeout);
    }
    return true;
  }
  void synchronize() override {}
  void abort() override {
    for (const WorkPtr& work : works_) {
      work->abort();
    }
  }

  // The calls that were brought together have their results; there are none here.
  std::vector<at::Tensor> result() override { return {}; }
  // Of no tensors, or the first error.
  FuturePtr getFuture() override {
    return join(&c10d::Work::getFuture, c10::ListType::create(c10::TensorType::get()),
                [](const c10::List<FuturePtr>& ended) {
                  for (const FuturePtr& future : ended) {
                    future->value();  // throws what it ended with
                  }
                  return c10::IValue(c10::List<at::Tensor>());
                });
  }

  // The first that is not SUCCESS.
  FuturePtr getFutureResult() override {
    return join(&c10d::Work::getFutureResult, c10::IntType::get(),
                [](const c10::List<FuturePtr>& ended) {
                  for (const FuturePtr& future : ended) {
                    if (const int64_t code = future->value().toInt(); code != 0) {
                      return c10::IValue(code);
                    }
                  }
                  return c10::IValue(int64_t{0});
                });
  }

 private:
  template <typename Join>
  FuturePtr join(FuturePtr (c10d::Work::*part)(), const c10::TypePtr& type, Join join) {
    c10::List<FuturePtr> parts(c10::FutureType::create(type));
    for (const WorkPtr& work : works_) {
      parts.push_back((*work.*part)());
    }
    return c10::collectAll(parts)->then([parts, join](c10::ivalue::Future&) { return join(parts); },
                                        type);
  }

  const std::vector<WorkPtr> works_;
};

// What the thread that called begin() has called since, as far as it has not ended well. A block
// that an exception leaves is not ended, and so goes on until the next begins: what it keeps must
// not grow with every later call. Methods may be called from any thread.
class Coalescing {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  void begin() {
    std::vector<WorkPtr> ended;  // of a block that an exception has ended
    std::lock_guard<std::mutex> lock(mutex_);
    works_.swap(ended);
    owner_ = std::this_thread::get_id();
    open_.store(true);
  }

  void add(const WorkPtr& work) {
    if (!open_.load(std::memory_order_relaxed)) {
      return;
    }
    std::vector<WorkPtr> ended;
    std::lock_guard<std::mutex> lock(mutex_);
    if (owner_ != std::this_thread::get_id()) {
      return;
    }
    if (works_.size() == works_.capacity()) {
      ended = takeEnded();
    }
    works_.push_back(work);
  }

  WorkPtr end(int rank) {
    std::vector<WorkPtr> ended;
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(open_.load(), "ringcomm: endCoalescing() without startCoalescing()");
    open_.store(false);
    owner_ = {};
    ended = takeEnded();
    return c10::make_intrusive<JoinedWork>(rank, std::exchange(works_, {}));
  }

 private:
  // All but what goes on and the first that failed, which is what the block will say. Freed by the
  // caller after the lock: that may take the GIL.
  std::vector<WorkPtr> takeEnded() {
    std::vector<WorkPtr> ended;
    std::vector<WorkPtr> kept;
    bool failed = false;
    for (WorkPtr& work : works_) {
      const bool goes = work->isCompleted() && (work->isSuccess() || std::exchange(failed, true));
      (goes ? ended : kept).push_back(std::move(work));
    }
    works_ = std::move(kept);
    return ended;
  }

  std::atomic<bool> open_{false};
  std::mutex mutex_;
  std::thread::id owner_;
  std::vector<WorkPtr> works_;
};

}  // namespace ringcomm
