#pragma once

#include "base/clock.h"
#include "io/loop.h"

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

// A loop for tests, with ways to do something on it and to wait for what happens there.
namespace ringcomm::testing {

class TestLoop {
 public:
  TestLoop() {
    Result<std::unique_ptr<Loop>> made = Loop::create("test");
    REQUIRE(made.ok());
    loop_ = std::move(*made);
  }

  Loop& operator*() const { return *loop_; }
  Loop* operator->() const { return loop_.get(); }

  // Runs `work` on the loop and gives its result.
  template <typename Work>
  auto run(Work work) const {
    using Value = std::invoke_result_t<Work>;
    std::promise<Value> promise;
    loop_->post([&] {
      if constexpr (std::is_void_v<Value>) {
        work();
        promise.set_value();
      } else {
        promise.set_value(work());
      }
    });
    return promise.get_future().get();
  }

 private:
  std::unique_ptr<Loop> loop_;
};

// Looks every millisecond; false when it has not become true in time.
inline bool eventually(std::chrono::milliseconds limit, const std::function<bool()>& isTrue) {
  const TimePoint end = Clock::now() + limit;
  while (!isTrue()) {
    if (Clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace ringcomm::testing
