#include "base/elastic_pool.h"

#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

namespace ringcomm {

namespace {

constexpr std::chrono::seconds kIdleTime{5};

}  // namespace

void ElasticPool::submit(std::function<void()> job) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (quiet_) {
    kept_.push_back(std::move(job));
    return;
  }
  jobs_.push_back(std::move(job));
  if (jobs_.size() > idle_ && startThread()) {
    return;
  }
  jobReady_.notify_one();
}

// False when the system has no thread left to give; the job then waits for one that there is, or
// for the next submit().
bool ElasticPool::startThread() {
  try {
    // Counted in threads_, which the destructor waits for; a handle would only have to be joined.
    std::thread([this] { work(); }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  ++threads_;
  return true;
}

void ElasticPool::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (jobs_.empty()) {
      ++idle_;
      threadEnded_.notify_all();
      const bool called =
          jobReady_.wait_for(lock, kIdleTime, [this] { return stopping_ || !jobs_.empty(); });
      --idle_;
      if (!called || jobs_.empty()) {
        break;
      }
    }
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // what it holds is let go of without the lock
    lock.lock();
  }
  --threads_;
  threadEnded_.notify_all();
}

void ElasticPool::quiesce(std::chrono::milliseconds longest) {
  std::unique_lock<std::mutex> lock(mutex_);
  quiet_ = true;
  threadEnded_.wait_for(lock, longest, [this] { return jobs_.empty() && idle_ == threads_; });
}

ElasticPool::~ElasticPool() {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  jobReady_.notify_all();
  threadEnded_.wait(lock, [this] { return threads_ == 0; });
}

}  // namespace ringcomm
