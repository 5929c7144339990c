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
  size_t count = 0;  // elements of the vector, or of a block
  uint64_t salt = 0;
  bool uneven = false;  // blocks have other sizes than `count`, some of them none

  std::string text() const {
    return std::string(collectiveName(kind)) + " " + dtypeName(dtype) + " " + reduceOpName(op) +
           " root " + std::to_string(root) + " count " + std::to_string(count) +
           (uneven ? ", uneven" : "");
  }
};

// The calls of one shape, one on each rank, get small whole numbers that differ by rank and place:
// every result is exact in every type used here, and one wrong byte shows.
class Call {
 public:
  Call(const CallShape& shape, int rank, int world)
      : shape_(shape), rank_(rank), world_(world), size_(dtypeSize(shape.dtype)) {
    memory_ = before();
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
    const bool compared = shape_.kind != Collective::kGather &&
                          shape_.kind != Collective::kScatter &&
                          shape_.kind != Collective::kAllToAll && !shape_.uneven;
    made.count = compared ? shape_.count : OpDesc::kPerMessage;
    for (auto& buffer : memory_) {
      made.buffers.push_back({buffer.data(), buffer.size()});
    }
    return made;
  }

  // Elements that are not what they must be after the call, outputs and inputs.
  size_t wrong() const {
    const std::vector<Bytes> expected = after();
    size_t count = 0;
    for (size_t i = 0; i < memory_.size(); ++i) {
      count += differing(memory_[i], expected[i]);
    }
    return count;
  }

 private:
  using Bytes = std::vector<std::byte>;
  static constexpr std::byte kUntouched{0xA5};

  // Elements of the block that `from` has for `to`, or of block `from`.
  size_t part(int from, int to = 0) const {
    const auto mixed = static_cast<size_t>(from * 3 + to * 5) + shape_.salt;
    return shape_.uneven ? shape_.count * (mixed % 4) / 2 : shape_.count;
  }
  Bytes untouched(size_t count) const { return Bytes(count * size_, kUntouched); }

  // The buffers as the plan numbers them, less its scratch.
  std::vector<Bytes> before() const {
    std::vector<Bytes> made;
    const bool isRoot = rank_ == shape_.root;
    switch (shape_.kind) {
      case Collective::kBarrier:
        break;
      case Collective::kAllReduce:
      case Collective::kBroadcast:
      case Collective::kReduce:
        made.push_back(filledBy(rank_, 0, shape_.count));
        if (shape_.kind == Collective::kReduce && isRoot) {
          made.push_back(untouched(shape_.count));
        }
        break;
      case Collective::kAllGather:
      case Collective::kGather:
        made.push_back(filledBy(rank_, 0, part(rank_)));
        for (int r = 0; r < world_ && (isRoot || shape_.kind == Collective::kAllGather); ++r) {
          made.push_back(untouched(part(r)));
        }
        break;
      case Collective::kScatter:
      case Collective::kReduceScatter:
        made.push_back(untouched(part(rank_)));
        for (int r = 0; r < world_ && (isRoot || shape_.kind == Collective::kReduceScatter); ++r) {
          made.push_back(filledBy(rank_, r, part(r)));
        }
        break;
      case Collective::kAllToAll:
        for (int r = 0; r < world_; ++r) {
          made.push_back(filledBy(rank_, r, part(rank_, r)));
        }
        for (int r = 0; r < world_; ++r) {
          made.push_back(untouched(part(r, rank_)));
        }
        break;
    }
    return made;
  }

  std::vector<Bytes> after() const {
    std::vector<Bytes> made = before();
    const bool isRoot = rank_ == shape_.root;
    switch (shape_.kind) {
      case Collective::kBarrier:
        break;
      case Collective::kAllReduce:
        made[0] = reduced(0, shape_.count);
        break;
      case Collective::kBroadcast:
        made[0] = filledBy(shape_.root, 0, shape_.count);
        break;
      case Collective::kReduce:
        made.back() = isRoot ? reduced(0, shape_.count) : made.back();
        break;
      case Collective::kAllGather:
      case Collective::kGather:
        for (size_t i = 1; i < made.size(); ++i) {
          const int r = static_cast<int>(i) - 1;
          made[i] = filledBy(r, 0, part(r));
        }
        break;
      case Collective::kScatter:
        made[0] = filledBy(shape_.root, rank_, part(rank_));
        break;
      case Collective::kReduceScatter:
        made[0] = reduced(rank_, part(rank_));
        break;
      case Collective::kAllToAll:
        for (int r = 0; r < world_; ++r) {
          made[static_cast<size_t>(world_ + r)] = filledBy(r, rank_, part(r, rank_));
        }
        break;
    }
    return made;
  }

  int valueOf(int rank, int block, size_t index) const {
    const auto source = static_cast<uint64_t>(rank + 131 * block);
    const uint64_t mixed = (index + shape_.salt) * 2654435761u + source * 40503;
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

  Bytes filledBy(int rank, int block, size_t count) const {
    Bytes made(count * size_);
    for (size_t i = 0; i < count; ++i) {
      store(made, i, valueOf(rank, block, i) + (shape_.op == ReduceOp::kProduct ? 1 : 0));
    }
    return made;
  }

  // What the ranks' blocks of that number come to.
  Bytes reduced(int block, size_t count) const {
    Bytes made(count * size_);
    for (size_t i = 0; i < count; ++i) {
      const bool product = shape_.op == ReduceOp::kProduct;
      double result = valueOf(0, block, i) + (product ? 1 : 0);
      for (int rank = 1; rank < world_; ++rank) {
        const double value = valueOf(rank, block, i) + (product ? 1 : 0);
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
  std::vector<Bytes> memory_;
};

}  // namespace ringcomm::testing
