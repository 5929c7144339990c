#pragma once

#include "engine/flight_recorder.h"
#include "torch/work.h"

#include <c10/core/ScalarType.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

// The process's flight recorder, and what a call of the backend is in it. It keeps what torch's own
// keeps, which is not exported from torch's libraries; ringcomm/flight_recorder.py writes it in
// torch's format.
namespace ringcomm {

struct CallRecorder {
  FlightRecorder calls;
  bool stacks;  // whether each call's is kept: that takes the GIL in each call
};

// nullptr where TORCH_FR_BUFFER_SIZE=0 switches it off. The number of entries is torch's default
// unless that says another, and then stacks are kept, too.
inline CallRecorder* callRecorder() {
  constexpr long kTorchsDefault = 2000;
  static CallRecorder* const recorder = []() -> CallRecorder* {
    const char* wanted = std::getenv("TORCH_FR_BUFFER_SIZE");
    if (wanted == nullptr) {
      wanted = std::getenv("TORCH_NCCL_TRACE_BUFFER_SIZE");
    }
    const long size = wanted == nullptr ? kTorchsDefault : std::strtol(wanted, nullptr, 10);
    // Never destroyed: works may end, and stacks be freed, while the process does.
    return size <= 0
               ? nullptr
               : new CallRecorder{FlightRecorder(static_cast<size_t>(size)), wanted != nullptr};
  }();
  return recorder;
}

// The name of a call as torch's tools know it: of a collective, or "send 0->1", "recv 1<-0".
inline std::string recordedName(c10d::OpType type, bool even, int rank, int peer) {
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
    case kReduceScatterCoalesced:
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

// Whether the tensors have the same sizes.
inline bool alike(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.sizes() == tensors[0].sizes();
  });
}

// The sizes of a list of tensors. One of equal tensors for each rank is shown as what it is
// together: `stacked`, the ranks being the first dimension.
inline std::vector<FlightRecorder::Shape> shapesOf(const std::vector<at::Tensor>& tensors,
                                                   bool stacked) {
  std::vector<FlightRecorder::Shape> shapes;
  for (const at::Tensor& tensor : tensors) {
    shapes.push_back({tensor.sizes().vec(), c10::toString(tensor.scalar_type())});
  }
  if (stacked && !shapes.empty()) {
    shapes[0].sizes.insert(shapes[0].sizes.begin(), static_cast<int64_t>(shapes.size()));
    shapes.resize(1);
  }
  return shapes;
}

// A call but for what only its group knows.
inline FlightRecorder::Call recordedCall(const RingWork::Call& call, int rank, bool stack) {
  const bool even = alike(call.inputs) && alike(call.outputs);
  FlightRecorder::Call recorded;
  recorded.name = recordedName(call.type, even, rank, call.peer);
  recorded.p2p = c10d::isP2POp(call.type);
  recorded.timeout = call.timeout;
  recorded.inputs = shapesOf(call.inputs, even && call.type == c10d::OpType::REDUCE_SCATTER);
  recorded.outputs = shapesOf(call.outputs, even && call.type == c10d::OpType::ALLGATHER);
  if (stack) {
    recorded.stack = torch::CapturedTraceback::gather(true, true, false);
  }
  return recorded;
}

}  // namespace ringcomm
