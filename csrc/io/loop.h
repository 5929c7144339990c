#pragma once

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

struct epoll_event;

namespace ringcomm {

using Task = std::function<void()>;

// Told of a descriptor's events (EPOLL* bits), on the loop that watches it.
class EventHandler {
 public:
  virtual void onEvents(uint32_t events) noexcept = 0;

 protected:
  ~EventHandler() = default;
};

// A unit of work that may be put on the loop's ready list: run() does a bounded piece, and puts
// itself back when there is more, so that nobody is starved.
class Runnable {
 public:
  virtual void run() noexcept = 0;

  bool onReadyList = false;  // the loop's own

 protected:
  ~Runnable() = default;
};

// An event loop over epoll, and the thread that runs it.
//
// Whoever runs the loop holds its baton: usually the loop's own thread, which keeps it while it
// sleeps in epoll_wait; for the length of a small operation the thread that waits for it (assist).
// "On the loop" means: holding the baton. Handlers, tasks, timers and runnables run on the loop, so
// what they own needs no lock. post, postQuietly, assist, retain and release may be called from any
// thread; everything else only on the loop. After stop() nothing runs any more and tasks are
// dropped.
class Loop {
 public:
  static Result<std::unique_ptr<Loop>> create(const std::string& name);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Runs the task on the loop, after those posted before it.
  void post(Task task);
  // The same without waking the loop, for a caller that goes on to assist() at once.
  void postQuietly(Task task);

  // Runs the loop on the calling thread until done() or the deadline, sleeping when nothing is to
  // be done; before it sleeps for the first time it polls for `spin` since anything last happened.
  // Returns at once if another thread assists.
  void assist(const std::function<bool()>& done, TimePoint deadline, Duration spin);

  // Tells that somebody depends on this loop's progress (an operation in flight): after an assist
  // the loop's thread then takes over immediately instead of a moment later.
  void retain() noexcept { retained_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept { retained_.fetch_sub(1, std::memory_order_relaxed); }

  // Edge-triggered: after an event the owner reads or writes until it would block. The handler
  // must outlive the watch.
  Status watch(int fd, uint32_t events, EventHandler* handler);
  void unwatch(int fd, EventHandler* handler) noexcept;

  using TimerId = std::pair<TimePoint, uint64_t>;
  TimerId startTimer(TimePoint when, Task task);
  void cancelTimer(const TimerId& id) noexcept { timers_.erase(id); }

  void makeReady(Runnable* runnable);
  void forget(Runnable* runnable) noexcept;  // before a runnable dies

  // Memory for anything that lives no longer than one call on the loop; kept hot in cache.
  std::byte* scratch() noexcept { return scratch_.get(); }
  static constexpr size_t kScratchBytes = (1 << 20) + 64;

  // Ends the thread; called by the owner, not on the loop.
  void stop();

 private:
  Loop(UniqueFd epoll, UniqueFd wake);

  void threadMain();
  void park();
  void turn();
  bool poll(Duration longest);  // true if anything happened
  bool nothingReady();
  void fireTimers();
  void wake() noexcept;

  UniqueFd epoll_;
  UniqueFd wake_;
  std::unique_ptr<std::byte[]> scratch_;

  // What the runner is doing, so that post() knows how to reach it.
  enum class State : uint8_t { kRunning, kSleeping, kParked };
  std::atomic<State> state_{State::kRunning};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> assisting_{false};
  std::atomic<int> retained_{0};

  std::mutex baton_;

  std::mutex inboxMutex_;
  std::vector<Task> inbox_;
  std::atomic<bool> inboxFull_{false};

  std::mutex parkMutex_;
  std::condition_variable parkWake_;
  bool resume_ = false;
  std::atomic<int64_t> lastAssistNs_{0};

  // Guarded by the baton.
  std::vector<Task> tasks_;
  std::vector<Runnable*> ready_;
  std::vector<Runnable*> running_;
  std::map<TimerId, Task> timers_;
  uint64_t nextTimer_ = 0;
  epoll_event* batch_ = nullptr;
  int batchSize_ = 0;

  std::thread thread_;
};

}  // namespace ringcomm
