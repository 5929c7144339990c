#include "torch/flight_recorder.h"

#include <c10/util/ApproximateClock.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace ringcomm {

namespace {

constexpr int64_t kTorchsDefault = 2000;

const char* bufferSize() {
  for (const char* name : {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}) {
    if (const char* value = std::getenv(name); value != nullptr) {
      return value;
    }
  }
  return nullptr;
}

}  // namespace

FlightRecorder* FlightRecorder::get() {
  static FlightRecorder* const recorder = []() -> FlightRecorder* {
    const char* wanted = bufferSize();
    const int64_t size = wanted == nullptr ? kTorchsDefault : std::strtoll(wanted, nullptr, 10);
    // Never destroyed: works may end, and stacks be freed, while the process does.
    return size <= 0 ? nullptr : new FlightRecorder(static_cast<size_t>(size), wanted != nullptr);
  }();
  return recorder;
}

uint64_t FlightRecorder::record(Call call) {
  Entry entry;
  entry.call = std::move(call);
  entry.thread = c10::getThreadName();
  entry.createdNanos = c10::getTime();
  if (stacks_) {
    entry.stack = torch::CapturedTraceback::gather(true, true, false);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  entry.id = next_++;
  std::swap(ring_[entry.id % ring_.size()], entry);
  return next_ - 1;
}

void FlightRecorder::end(uint64_t id, const Status& status, Duration took) {
  const int64_t now = c10::getTime();
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = ring_[id % ring_.size()];
  if (entry.id != id) {
    return;  // so many came after it that it is gone
  }
  entry.endedNanos = now;
  entry.millis = std::chrono::duration<float, std::milli>(took).count();
  entry.state = status.ok() ? State::kCompleted : State::kFailed;
  entry.error = status.message();
}

void FlightRecorder::rename(uint64_t id, std::string name) {
  std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = ring_[id % ring_.size()];
  if (entry.id == id) {
    entry.call.name = std::move(name);
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

std::vector<std::vector<FlightRecorder::Frame>> FlightRecorder::framesOf(
    const std::vector<Entry>& entries) {
  std::vector<torch::CapturedTraceback*> stacks;
  for (const Entry& entry : entries) {
    if (entry.stack != nullptr) {
      stacks.push_back(entry.stack.get());
    }
  }
  const torch::SymbolizedTracebacks symbols =
      stacks.empty() ? torch::SymbolizedTracebacks() : torch::symbolize(stacks);
  std::vector<std::vector<Frame>> frames(entries.size());
  size_t next = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].stack == nullptr) {
      continue;
    }
    for (const uint64_t index : symbols.tracebacks[next++]) {
      const auto& frame = symbols.all_frames[index];
      frames[i].push_back({frame.funcname, frame.filename, static_cast<int64_t>(frame.lineno)});
    }
  }
  return frames;
}

std::string recordedName(c10d::OpType type, bool even, int rank, int peer) {
  using c10d::OpType;
  switch (type) {
    case OpType::BROADCAST:
      return "broadcast";
    case OpType::ALLREDUCE:
      return "all_reduce";
    case OpType::ALLREDUCE_COALESCED:
      return "allreduce_coalesced";
    case OpType::REDUCE:
      return "reduce";
    case OpType::ALLGATHER:
      return even ? "all_gather" : "all_gather_v";
    case OpType::_ALLGATHER_BASE:
      return "_all_gather_base";
    case OpType::ALLGATHER_COALESCED:
      return "ALLGATHER_coalesced";
    case OpType::COALESCED:
      return "all_gather_into_tensor_coalesced";
    case OpType::GATHER:
      return "gather";
    case OpType::SCATTER:
      return "scatter";
    case OpType::REDUCE_SCATTER:
      return even ? "reduce_scatter" : "reduce_scatter_v";
    case OpType::_REDUCE_SCATTER_BASE:
      return "_reduce_scatter_base";
    case OpType::REDUCE_SCATTER_TENSOR_COALESCED:
      return "reduce_scatter_tensor_coalesced";
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      return "all_to_all";
    case OpType::SEND:
      return "send " + std::to_string(rank) + "->" + std::to_string(peer);
    case OpType::RECV:
    case OpType::RECVANYSOURCE:
      return "recv " + std::to_string(rank) + "<-" + std::to_string(peer);
    default:
      return "barrier";
  }
}

bool alike(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.sizes() == tensors[0].sizes();
  });
}

std::vector<FlightRecorder::Shape> shapesOf(const std::vector<at::Tensor>& tensors, bool stacked) {
  std::vector<FlightRecorder::Shape> shapes;
  for (const at::Tensor& tensor : tensors) {
    shapes.push_back({tensor.sizes().vec(), tensor.scalar_type()});
  }
  if (stacked && !shapes.empty()) {
    shapes[0].sizes.insert(shapes[0].sizes.begin(), static_cast<int64_t>(shapes.size()));
    shapes.resize(1);
  }
  return shapes;
}

}  // namespace ringcomm
