#pragma once

#include "cluster.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

// Collectives with memory of their own and with what must come out of them.
namespace ringcomm::testing {

struct CallShape {
  Collective kind = Collective::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kNone;
  int root = -1;
  size_t count = 0;
  uint64_t salt = 0;

  std::string text() const {
    return std::string(collectiveName(kind)) + " " + dtypeName(dtype) + " " + reduceOpName(op) +
           " root " + std::to_string(root) + " count " + std::to_string(count);
  }
};

// The calls of one shape, one on each rank, get small whole numbers that differ by rank and place:
// every result is exact in every type used here, and one wrong byte shows.
class Call {
 public:
  Call(const CallShape& shape, int rank, int world)
      : shape_(shape), rank_(rank), world_(world), size_(dtypeSize(shape.dtype)) {
    if (shape_.kind == Collective::kBarrier) {
      return;
    }
    memory_.push_back(filledBy(rank));
    if (shape_.kind == Collective::kAllGather) {
      memory_.resize(1 + static_cast<size_t>(world), std::vector<std::byte>(bytes(), kUntouched));
    }
  }

  OpDesc desc() {
    OpDesc made;
    made.kind = shape_.kind;
    if (shape_.kind == Collective::kBarrier) {
      return made;
    }
    made.dtype = shape_.dtype;
    made.reduceOp = shape_.op;
    made.root = shape_.root;
    made.count = shape_.count;
    for (auto& buffer : memory_) {
      made.buffers.push_back({buffer.data(), buffer.size()});
    }
    return made;
  }

  // Elements that are not what they must be after the call.
  size_t wrong() const {
    switch (shape_.kind) {
      case Collective::kAllReduce:
        return differing(memory_[0], reduced());
      case Collective::kBroadcast:
        return differing(memory_[0], filledBy(shape_.root));
      case Collective::kAllGather: {
        size_t count = differing(memory_[0], filledBy(rank_));
        for (int rank = 0; rank < world_; ++rank) {
          count += differing(memory_[1 + static_cast<size_t>(rank)], filledBy(rank));
        }
        return count;
      }
      default:  // a barrier has no elements; the shapes drawn here are of no other kind
        break;
    }
    return 0;
  }

 private:
  using Bytes = std::vector<std::byte>;
  static constexpr std::byte kUntouched{0xA5};

  size_t bytes() const { return shape_.count * size_; }

  int valueOf(int rank, size_t index) const {
    const uint64_t mixed =
        (index + shape_.salt) * 2654435761u + static_cast<uint64_t>(rank) * 40503;
    // Products stay exact only when the factors are small.
    return static_cast<int>(mixed >> 7) & (shape_.op == ReduceOp::kProduct ? 1 : 7);
  }

  template <typename T>
  static void put(std::byte* at, T value) {
    std::memcpy(at, &value, sizeof value);
  }

  void store(Bytes& to, size_t index, double value) const {
    std::byte* at = to.data() + index * size_;
    switch (shape_.dtype) {
      case DType::kInt16:
        return put(at, static_cast<int16_t>(value));
      case DType::kInt32:
        return put(at, static_cast<int32_t>(value));
      case DType::kInt64:
        return put(at, static_cast<int64_t>(value));
      case DType::kFloat32:
        return put(at, static_cast<float>(value));
      case DType::kFloat64:
        return put(at, value);
      case DType::kComplex128:
        put(at, value);
        return put(at + 8, -value);
      default:  // one byte
        return put(at, static_cast<uint8_t>(value));
    }
  }

  Bytes filledBy(int rank) const {
    Bytes made(bytes());
    for (size_t i = 0; i < shape_.count; ++i) {
      store(made, i, valueOf(rank, i) + (shape_.op == ReduceOp::kProduct ? 1 : 0));
    }
    return made;
  }

  Bytes reduced() const {
    Bytes made(bytes());
    for (size_t i = 0; i < shape_.count; ++i) {
      const bool product = shape_.op == ReduceOp::kProduct;
      double result = valueOf(0, i) + (product ? 1 : 0);
      for (int rank = 1; rank < world_; ++rank) {
        const double value = valueOf(rank, i) + (product ? 1 : 0);
        result = shape_.op == ReduceOp::kMax   ? std::max(result, value)
                 : shape_.op == ReduceOp::kMin ? std::min(result, value)
                 : product                     ? result * value
                                               : result + value;
      }
      if (shape_.op == ReduceOp::kAvg) {
        result = shape_.dtype == DType::kFloat32
                     ? static_cast<float>(result) / static_cast<float>(world_)
                     : result / world_;  // integers are cut by store()
      }
      store(made, i, result);
    }
    return made;
  }

  size_t differing(const Bytes& got, const Bytes& expected) const {
    if (got == expected) {
      return 0;
    }
    size_t count = got.size() == expected.size() ? 0 : 1;
    for (size_t i = 0; i + size_ <= std::min(got.size(), expected.size()); i += size_) {
      count += std::memcmp(got.data() + i, expected.data() + i, size_) == 0 ? 0 : 1;
    }
    return count;
  }

  const CallShape shape_;
  const int rank_;
  const int world_;
  const size_t size_;
  std::vector<Bytes> memory_;  // as the plan numbers the buffers, less its scratch
};

}  // namespace ringcomm::testing
