#pragma once

#include "torch/tensors.h"
#include "torch/work.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ringcomm {

// What one call of the backend becomes: a Work, and the operations behind it. Adapters add the
// operations' buffers tensor by tensor, in the order of the plans' buffer tables; what is not
// contiguous goes through a temporary and is copied back after the last operation. Included by
// backend.cpp and work.cpp only.
class Batch {
 public:
  Batch(c10d::OpType type, const char* title, std::vector<at::Tensor> inputs,
        std::vector<at::Tensor> outputs)
      : doing_(std::string(title).substr(sizeof "ringcomm:" - 1)) {
    call_.type = type;
    call_.title = title;
    call_.inputs = std::move(inputs);
    call_.outputs = std::move(outputs);
  }

  const char* doing() const { return doing_.c_str(); }

  // Begins an operation; the calls that follow describe it.
  OpDesc& begin(Collective kind, const at::Tensor& like) {
    OpDesc& desc = ops_.emplace_back();
    desc.kind = kind;
    desc.dtype = dtypeOf(like.scalar_type(), doing());
    desc.count = static_cast<uint64_t>(like.numel());
    return desc;
  }

  void beginBarrier() { ops_.emplace_back().kind = Collective::kBarrier; }

  // Each adds a tensor as the operation's next buffer, and gives the memory that stands for it.
  at::Tensor read(const at::Tensor& tensor) {
    checkTensor(tensor, doing());
    return add(Flat(tensor, Flat::Use::kRead));
  }
  at::Tensor update(const at::Tensor& tensor) {
    checkTarget(tensor, doing());
    return add(Flat(tensor, Flat::Use::kReadWrite));
  }
  at::Tensor write(const at::Tensor& tensor) {
    checkTarget(tensor, doing());
    return add(Flat(tensor, Flat::Use::kWrite));
  }

  // The same for a tensor that is cut into parts of these numbers of elements: a buffer for each.
  void readParts(const at::Tensor& tensor, const std::vector<int64_t>& counts) {
    checkTensor(tensor, doing());
    addParts(Flat(tensor, Flat::Use::kRead), counts);
  }
  void writeParts(const at::Tensor& tensor, const std::vector<int64_t>& counts) {
    checkTarget(tensor, doing());
    addParts(Flat(tensor, Flat::Use::kWrite), counts);
  }

  // The same for one that is cut into equal parts.
  void readEvenParts(const at::Tensor& tensor, int parts) {
    readParts(tensor, even(tensor, parts));
  }
  void writeEvenParts(const at::Tensor& tensor, int parts) {
    writeParts(tensor, even(tensor, parts));
  }

  // After the copies back; for what is to be computed from the results.
  void finally(std::function<void()> work) { finally_ = std::move(work); }

  RingWork::Call& call() { return call_; }

  std::vector<OpDesc> takeOps() { return std::move(ops_); }
  RingWork::Call takeCall() {
    if (!written_.empty() || finally_) {
      call_.epilogue = [written = std::move(written_), last = std::move(finally_)] {
        for (const Flat& flat : written) {
          flat.copyBack();
        }
        if (last) {
          last();
        }
      };
    }
    return std::move(call_);
  }

 private:
  static std::vector<int64_t> even(const at::Tensor& tensor, int parts) {
    return std::vector<int64_t>(static_cast<size_t>(parts), tensor.numel() / parts);
  }

  at::Tensor add(const Flat& flat) {
    keep(flat);
    ops_.back().buffers.push_back(flat.buffer());
    return flat.memory();
  }

  void addParts(const Flat& flat, const std::vector<int64_t>& counts) {
    keep(flat);
    std::byte* data = flat.buffer().data;
    for (const int64_t count : counts) {
      const auto bytes = static_cast<uint64_t>(count) * flat.memory().element_size();
      ops_.back().buffers.push_back({data, bytes});
      data += bytes;
    }
  }

  void keep(const Flat& flat) {
    call_.held.push_back(flat.memory());
    if (flat.copied()) {
      written_.push_back(flat);
    }
  }

  const std::string doing_;
  RingWork::Call call_;
  std::vector<OpDesc> ops_;
  std::vector<Flat> written_;
  std::function<void()> finally_;
};

}  // namespace ringcomm
