#pragma once

#include "base/clock.h"
#include "base/status.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ringcomm {

// The last calls that were made, for whoever asks why a job stands still. What they were is told by
// the caller; what became of them is told by end(). Methods may be called from any thread.
class FlightRecorder {
 public:
  struct Group {
    std::string name;
    std::string description;
    std::vector<uint64_t> ranks;  // in the whole job
  };

  struct Shape {
    std::vector<int64_t> sizes;
    const char* dtype;  // its name; static
  };

  // What is known when the call is made. The counters are the group's, this call included.
  struct Call {
    std::shared_ptr<const Group> group;
    std::string name;
    bool p2p = false;
    uint64_t collectives = 0;
    uint64_t transfers = 0;
    uint64_t calls = 0;
    std::chrono::milliseconds timeout{};
    std::vector<Shape> inputs;
    std::vector<Shape> outputs;
    // Where it was called, for who can read it; or null. Freed on threads that call record() or
    // have taken entries(), and never under the recorder's lock.
    std::shared_ptr<void> stack;
  };

  enum class State : uint8_t { kStarted, kCompleted, kFailed };

  struct Entry {
    uint64_t id = 0;
    Call call;
    std::string thread;
    int64_t createdNanos = 0;  // since the epoch, as the other
    int64_t endedNanos = 0;
    float millis = 0;
    State state = State::kStarted;
    std::string error;
  };

  // Keeps so many entries, at least one.
  explicit FlightRecorder(size_t capacity) : ring_(capacity) {}

  // Gives the number to end() it with.
  uint64_t record(Call call);
  // Both do nothing where so many calls came after it that it is gone.
  void end(uint64_t id, const Status& status, Duration took);
  void rename(uint64_t id, std::string name);

  std::vector<Entry> entries() const;  // oldest first

 private:
  Entry* find(uint64_t id);

  mutable std::mutex mutex_;
  std::vector<Entry> ring_;
  uint64_t next_ = 0;
};

}  // namespace ringcomm
