#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace ringcomm {

// Threads for jobs that may block for long, even on each other's results: whenever a job finds no
// idle thread, a new one is started for it. Idle threads end after a while. Jobs must not throw.
// submit() may be called from any thread; the destructor waits for the jobs that are running.
class ElasticPool {
 public:
  ElasticPool() = default;
  ~ElasticPool();
  ElasticPool(const ElasticPool&) = delete;
  ElasticPool& operator=(const ElasticPool&) = delete;

  void submit(std::function<void()> job);

  // For a process that ends: waits until no job is left, at most this long. Jobs that come later
  // are neither run nor, while the pool lives, freed, since what they need may be gone.
  void quiesce(std::chrono::milliseconds longest);

 private:
  bool startThread();
  void work();

  std::mutex mutex_;
  std::condition_variable jobReady_;
  std::condition_variable threadEnded_;  // or has become idle
  std::deque<std::function<void()>> jobs_;
  std::deque<std::function<void()>> kept_;  // came too late to be run
  size_t idle_ = 0;
  size_t threads_ = 0;
  bool stopping_ = false;
  bool quiet_ = false;
};

}  // namespace ringcomm
