#include "io/loop.h"

#include "base/float_mode.h"

#include <algorithm>
#include <cerrno>

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace ringcomm {

namespace {

constexpr int kBatch = 64;

// How long the loop's thread stays away after an assist: long enough that a burst of small
// operations finds the baton free, short enough that nobody notices when the burst ends.
constexpr std::chrono::milliseconds kParkTime{2};

int64_t nowNs() { return Clock::now().time_since_epoch().count(); }

}  // namespace

Result<std::unique_ptr<Loop>> Loop::create(const std::string& name) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) {
    return Status::fromErrno("epoll_create1", errno);
  }
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) {
    return Status::fromErrno("eventfd", errno);
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.ptr = nullptr;  // nullptr marks the eventfd, whose only purpose is to end epoll_wait
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return Status::fromErrno("epoll_ctl", errno);
  }
  std::unique_ptr<Loop> loop(new Loop(std::move(epoll), std::move(wake)));
  loop->thread_ = std::thread([raw = loop.get()] { raw->threadMain(); });
  pthread_setname_np(loop->thread_.native_handle(), name.substr(0, 15).c_str());
  return loop;
}

Loop::Loop(UniqueFd epoll, UniqueFd wake)
    : epoll_(std::move(epoll)), wake_(std::move(wake)), scratch_(new std::byte[kScratchBytes]) {}

Loop::~Loop() { stop(); }

void Loop::stop() {
  stopping_.store(true);
  {
    std::lock_guard<std::mutex> lock(parkMutex_);
    resume_ = true;
  }
  parkWake_.notify_all();
  wake();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Loop::wake() noexcept {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then a wake-up is pending anyway.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void Loop::post(Task task) {
  postQuietly(std::move(task));
  switch (state_.load()) {
    case State::kSleeping:
      wake();
      break;
    case State::kParked: {
      std::lock_guard<std::mutex> lock(parkMutex_);
      resume_ = true;
      parkWake_.notify_one();
      break;
    }
    case State::kRunning:  // looks into the inbox before it sleeps
      break;
  }
}

void Loop::postQuietly(Task task) {
  std::lock_guard<std::mutex> lock(inboxMutex_);
  inbox_.push_back(std::move(task));
  // Sequentially consistent with state_: either the runner sees this before it sleeps, or post()
  // sees that it sleeps.
  inboxFull_.store(true);
}

void Loop::threadMain() {
  const DefaultFloatMode floatMode;  // a new thread inherits its maker's
  while (!stopping_.load()) {
    {
      std::lock_guard<std::mutex> baton(baton_);
      state_.store(State::kRunning);
      while (!stopping_.load() && !assisting_.load()) {
        turn();
        poll(std::chrono::hours(1));
      }
      // An assistant that posted quietly takes over from here; it must not be kept waiting.
      state_.store(State::kParked);
    }
    park();
  }
}

void Loop::park() {
  std::unique_lock<std::mutex> lock(parkMutex_);
  while (!stopping_.load()) {
    const bool calm = !assisting_.load() &&
                      nowNs() - lastAssistNs_.load() > std::chrono::nanoseconds(kParkTime).count();
    if (calm || (resume_ && !assisting_.load())) {
      break;
    }
    parkWake_.wait_for(lock, kParkTime);
  }
  resume_ = false;
}

void Loop::assist(const std::function<bool()>& done, TimePoint deadline, Duration spin) {
  if (assisting_.exchange(true)) {
    return;
  }
  std::unique_lock<std::mutex> baton(baton_, std::try_to_lock);
  if (!baton.owns_lock()) {
    wake();  // the loop's thread sleeps with the baton in its hand, or is at work and lets go soon
    baton.lock();
  }
  state_.store(State::kRunning);
  const DefaultFloatMode floatMode;
  // Who has polled in vain once sleeps from then on: what is slow stays slow, and on a wire of
  // 1 Gbit/s polling between the packets of 1 MiB cost 1.6 times the CPU time.
  bool spinning = true;
  TimePoint spinEnd = Clock::now() + spin;
  while (!stopping_.load()) {
    turn();
    const TimePoint now = Clock::now();
    if (done() || now >= deadline) {
      break;
    }
    spinning = spinning && now < spinEnd;
    if (poll(spinning ? Duration::zero() : deadline - now) && spinning) {
      spinEnd = Clock::now() + spin;
    }
  }
  lastAssistNs_.store(nowNs());
  state_.store(State::kParked);
  const bool busy = retained_.load() > 0 || !ready_.empty();
  baton.unlock();
  assisting_.store(false);
  if (busy || inboxFull_.load()) {  // also what was posted when nobody could be told
    std::lock_guard<std::mutex> lock(parkMutex_);
    resume_ = true;
    parkWake_.notify_one();
  }
}

bool Loop::nothingReady() { return ready_.empty() && !inboxFull_.load(); }

// One round of everything that can be done without waiting.
void Loop::turn() {
  if (inboxFull_.load()) {
    {
      std::lock_guard<std::mutex> lock(inboxMutex_);
      tasks_.swap(inbox_);
      inboxFull_.store(false);
    }
    for (Task& task : tasks_) {
      task();
    }
    tasks_.clear();
  }
  fireTimers();
  running_.swap(ready_);
  for (size_t i = 0; i < running_.size(); ++i) {
    if (Runnable* runnable = running_[i]) {  // null: forgotten meanwhile
      runnable->onReadyList = false;
      runnable->run();
    }
  }
  running_.clear();
}

bool Loop::poll(Duration longest) {
  if (!timers_.empty()) {
    longest = std::min(longest, timers_.begin()->first.first - Clock::now());
  }
  int64_t waitNs = std::max<int64_t>(0, std::chrono::nanoseconds(longest).count());
  if (waitNs > 0) {
    state_.store(State::kSleeping);
    if (!nothingReady() || stopping_.load()) {
      waitNs = 0;
    }
  }
  // Rounded up, so that a timer has passed when we wake for it.
  const int waitMs = static_cast<int>(std::min<int64_t>((waitNs + 999999) / 1000000, 3600000));
  epoll_event events[kBatch];
  const int count = ::epoll_wait(epoll_.get(), events, kBatch, waitMs);
  state_.store(State::kRunning);
  batch_ = events;
  batchSize_ = std::max(count, 0);
  for (int i = 0; i < batchSize_; ++i) {
    if (auto* handler = static_cast<EventHandler*>(events[i].data.ptr)) {
      handler->onEvents(events[i].events);
    }
  }
  const bool happened = batchSize_ > 0;
  batch_ = nullptr;
  batchSize_ = 0;
  return happened;
}

void Loop::fireTimers() {
  if (timers_.empty()) {
    return;
  }
  const TimePoint now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    Task task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
  }
}

Status Loop::watch(int fd, uint32_t events, EventHandler* handler) {
  epoll_event event{};
  event.events = events | EPOLLET;
  event.data.ptr = handler;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return Status::fromErrno("epoll_ctl", errno);
  }
  return {};
}

void Loop::unwatch(int fd, EventHandler* handler) noexcept {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  // Events of this round that are still to be delivered would reach a handler that may be gone.
  for (int i = 0; i < batchSize_; ++i) {
    if (batch_[i].data.ptr == handler) {
      batch_[i].data.ptr = nullptr;
    }
  }
}

Loop::TimerId Loop::startTimer(TimePoint when, Task task) {
  const TimerId id{when, nextTimer_++};
  timers_.emplace(id, std::move(task));
  return id;
}

void Loop::makeReady(Runnable* runnable) {
  if (!runnable->onReadyList) {
    runnable->onReadyList = true;
    ready_.push_back(runnable);
  }
}

void Loop::forget(Runnable* runnable) noexcept {
  runnable->onReadyList = false;
  std::erase(ready_, runnable);
  std::replace(running_.begin(), running_.end(), runnable, static_cast<Runnable*>(nullptr));
}

}  // namespace ringcomm
