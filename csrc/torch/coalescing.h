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

  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (const WorkPtr& work : works_) {
      const std::vector<at::Tensor> some = work->result();
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }

  // The tensors of all, or the first error.
  FuturePtr getFuture() override {
    return join(&c10d::Work::getFuture, c10::ListType::create(c10::TensorType::get()),
                [](const c10::List<FuturePtr>& ended) {
                  c10::List<at::Tensor> tensors;
                  for (const FuturePtr& future : ended) {
                    tensors.append(future->value().toTensorList());
                  }
                  return c10::IValue(tensors);
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

// Which works the thread that called begin() has made since. Methods may be called from any thread.
class Coalescing {
 public:
  void begin() {
    std::lock_guard<std::mutex> lock(mutex_);
    works_.clear();  // of a block that an exception has ended
    owner_ = std::this_thread::get_id();
    open_.store(true);
  }

  void add(const c10::intrusive_ptr<c10d::Work>& work) {
    if (!open_.load(std::memory_order_relaxed)) {
      return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    if (owner_ == std::this_thread::get_id()) {
      works_.push_back(work);
    }
  }

  c10::intrusive_ptr<c10d::Work> end(int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(open_.load(), "ringcomm: endCoalescing() without startCoalescing()");
    open_.store(false);
    owner_ = {};
    return c10::make_intrusive<JoinedWork>(rank, std::exchange(works_, {}));
  }

 private:
  std::atomic<bool> open_{false};
  std::mutex mutex_;
  std::thread::id owner_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace ringcomm
