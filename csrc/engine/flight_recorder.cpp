#include "engine/flight_recorder.h"

#include <utility>

#include <pthread.h>

namespace ringcomm {

namespace {

// People compare these between machines, so they are of the clock that people read.
int64_t nanosOfDay() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::string threadName() {
  char name[16] = {};
  return ::pthread_getname_np(::pthread_self(), name, sizeof name) == 0 ? name : "";
}

}  // namespace

uint64_t FlightRecorder::record(Call call) {
  Entry entry;  // and then the one it overwrites, which goes after the lock
  entry.call = std::move(call);
  entry.thread = threadName();
  entry.createdNanos = nanosOfDay();
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t id = next_++;
  entry.id = id;
  std::swap(ring_[id % ring_.size()], entry);
  return id;
}

// Under the lock.
FlightRecorder::Entry* FlightRecorder::find(uint64_t id) {
  Entry& entry = ring_[id % ring_.size()];
  return entry.id == id && id < next_ ? &entry : nullptr;
}

void FlightRecorder::end(uint64_t id, const Status& status, Duration took) {
  const int64_t now = nanosOfDay();
  std::lock_guard<std::mutex> lock(mutex_);
  if (Entry* const entry = find(id); entry != nullptr) {
    entry->endedNanos = now;
    entry->millis = std::chrono::duration<float, std::milli>(took).count();
    entry->state = status.ok() ? State::kCompleted : State::kFailed;
    entry->error = status.message();
  }
}

void FlightRecorder::rename(uint64_t id, std::string name) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (Entry* const entry = find(id); entry != nullptr) {
    entry->call.name = std::move(name);
  }
}

std::vector<FlightRecorder::Entry> FlightRecorder::entries() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Entry> all;
  const uint64_t size = ring_.size();
  for (uint64_t id = next_ > size ? next_ - size : 0; id < next_; ++id) {
    all.push_back(ring_[id % size]);
  }
  return all;
}

}  // namespace ringcomm
