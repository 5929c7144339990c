#include "base/elastic_pool.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <set>
#include <thread>
#include <vector>

using namespace ringcomm;
using namespace std::chrono_literals;

namespace {

// Threads of this process, as the kernel counts them.
size_t threadCount() {
  size_t count = 0;
  std::FILE* file = std::fopen("/proc/self/status", "r");
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    std::sscanf(line, "Threads: %zu", &count);
  }
  std::fclose(file);
  return count;
}

}  // namespace

TEST_CASE("jobs that wait for later jobs all get a thread") {
  constexpr int kDepth = 20;
  std::vector<std::promise<int>> results(kDepth + 1);
  std::promise<void> last;
  auto finished = last.get_future();
  {
    ElasticPool pool;
    for (int i = 0; i < kDepth; ++i) {
      pool.submit([&, i] {
        const int next = results[static_cast<size_t>(i) + 1].get_future().get();
        results[static_cast<size_t>(i)].set_value(next + 1);
        if (i == 0) {
          last.set_value();
        }
      });
    }
    pool.submit([&] { results[kDepth].set_value(0); });
    REQUIRE(finished.wait_for(5s) == std::future_status::ready);
  }
  CHECK(results[0].get_future().get() == kDepth);
}

TEST_CASE("an idle thread is used again instead of starting another") {
  ElasticPool pool;
  std::set<std::thread::id> ids;
  for (int i = 0; i < 20; ++i) {
    std::promise<std::thread::id> ran;
    pool.submit([&] { ran.set_value(std::this_thread::get_id()); });
    ids.insert(ran.get_future().get());
    std::this_thread::sleep_for(2ms);  // until it is idle
  }
  CHECK(ids.size() <= 2);
}

TEST_CASE("the destructor waits for what runs and for what is queued") {
  const size_t before = threadCount();
  std::atomic<int> ran{0};
  {
    ElasticPool pool;
    for (int i = 0; i < 16; ++i) {
      pool.submit([&] {
        std::this_thread::sleep_for(20ms);
        ++ran;
      });
    }
  }
  CHECK(ran == 16);
  // The threads themselves are detached: gone from the kernel's list a moment later.
  for (int i = 0; i < 1000 && threadCount() > before; ++i) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK(threadCount() <= before);
}

TEST_CASE("what a job holds is let go of when it has run, before the pool ends") {
  ElasticPool pool;
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = held;
  std::promise<void> ran;
  pool.submit([held = std::move(held), &ran] { ran.set_value(); });
  ran.get_future().wait();
  for (int i = 0; i < 1000 && !watched.expired(); ++i) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK(watched.expired());
}

TEST_CASE("jobs may be submitted from many threads and from jobs") {
  std::atomic<int> ran{0};
  {
    ElasticPool pool;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) {
          pool.submit([&] {
            ++ran;
            pool.submit([&] { ++ran; });
          });
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  CHECK(ran == 800);
}
