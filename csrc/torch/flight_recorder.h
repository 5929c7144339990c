#pragma once

#include "base/clock.h"
#include "base/status.h"

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/profiler/combined_traceback.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ringcomm {

// The process's last calls of the backend, for whoever asks why a job stands still. It keeps what
// torch's flight recorder keeps, and ringcomm/flight_recorder.py writes it in torch's format;
// torch's own instance is not exported from its libraries. Methods may be called from any thread.
class FlightRecorder {
 public:
  struct Group {
    std::string name;
    std::string description;
    std::vector<uint64_t> ranks;  // in the whole job
  };

  struct Shape {
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
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
  };

  enum class State : uint8_t { kStarted, kCompleted, kFailed };

  struct Entry {
    uint64_t id = 0;
    Call call;
    std::string thread;
    std::shared_ptr<torch::CapturedTraceback> stack;  // null unless they are wanted
    int64_t createdNanos = 0;                         // since the epoch, as the others
    int64_t endedNanos = 0;
    float millis = 0;
    State state = State::kStarted;
    std::string error;
  };

  struct Frame {
    std::string function;
    std::string file;
    int64_t line = 0;
  };

  // nullptr where TORCH_FR_BUFFER_SIZE=0 switches it off. The number of entries is torch's default
  // unless that says another. Stacks are kept only if it is set: they take the GIL in each call.
  static FlightRecorder* get();

  // Gives the number to end() it with.
  uint64_t record(Call call);
  void end(uint64_t id, const Status& status, Duration took);
  // A receive from anybody has found its sender.
  void rename(uint64_t id, std::string name);

  std::vector<Entry> entries() const;  // oldest first
  // The frames of each entry, innermost first. May take the GIL.
  static std::vector<std::vector<Frame>> framesOf(const std::vector<Entry>& entries);

 private:
  FlightRecorder(size_t capacity, bool stacks) : stacks_(stacks), ring_(capacity) {}

  const bool stacks_;
  mutable std::mutex mutex_;
  std::vector<Entry> ring_;
  uint64_t next_ = 0;
};

// The name of a call as torch's tools know it: of a collective, or "send 0->1", "recv 1<-0".
std::string recordedName(c10d::OpType type, bool even, int rank, int peer);

// The sizes of a list of tensors. One of equal tensors for each rank is shown as what it is
// together: `stacked`, the ranks being the first dimension.
std::vector<FlightRecorder::Shape> shapesOf(const std::vector<at::Tensor>& tensors, bool stacked);

// Whether the tensors have the same sizes.
bool alike(const std::vector<at::Tensor>& tensors);

}  // namespace ringcomm
