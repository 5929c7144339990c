#pragma once

#include "engine/op.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

// How tensors become the engine's buffers. Included through batch.h only.
namespace ringcomm {

inline DType dtypeOf(at::ScalarType type, const char* doing) {
  switch (type) {
#define RC_CASE(torchName, ours)  \
  case at::ScalarType::torchName: \
    return DType::ours;
    RC_CASE(Byte, kUInt8)
    RC_CASE(Char, kInt8)
    RC_CASE(Short, kInt16)
    RC_CASE(Int, kInt32)
    RC_CASE(Long, kInt64)
    RC_CASE(Half, kFloat16)
    RC_CASE(Float, kFloat32)
    RC_CASE(Double, kFloat64)
    RC_CASE(BFloat16, kBFloat16)
    RC_CASE(Bool, kBool)
    RC_CASE(ComplexHalf, kComplex32)
    RC_CASE(ComplexFloat, kComplex64)
    RC_CASE(ComplexDouble, kComplex128)
    RC_CASE(UInt16, kUInt16)
    RC_CASE(UInt32, kUInt32)
    RC_CASE(UInt64, kUInt64)
    RC_CASE(Float8_e5m2, kFloat8E5M2)
    RC_CASE(Float8_e4m3fn, kFloat8E4M3FN)
    RC_CASE(Float8_e5m2fnuz, kFloat8E5M2FNUZ)
    RC_CASE(Float8_e4m3fnuz, kFloat8E4M3FNUZ)
    RC_CASE(Float8_e8m0fnu, kFloat8E8M0FNU)
#undef RC_CASE
    default:
      TORCH_CHECK_TYPE(false, "ringcomm: ", doing, ": cannot send tensors of dtype ", type);
  }
}

// A dense tensor in CPU memory, or an error that says what it is.
inline void checkTensor(const at::Tensor& tensor, const char* doing) {
  TORCH_CHECK_VALUE(tensor.defined(), "ringcomm: ", doing, ": invalid tensor: it is undefined");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "ringcomm: ", doing,
                    ": invalid tensor layout: only dense tensors are supported, this one is ",
                    tensor.layout());
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "ringcomm: ", doing,
                    ": invalid tensor device: only CPU tensors are supported, this one is on ",
                    tensor.device());
}

// The same for one that receives results: each element must have memory of its own.
inline void checkTarget(const at::Tensor& tensor, const char* doing) {
  checkTensor(tensor, doing);
  TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "ringcomm: ", doing,
                    ": invalid tensor layout: elements of the result overlap in memory (sizes ",
                    tensor.sizes(), ", strides ", tensor.strides(),
                    "), as expand() makes them; clone() it first");
}

inline Buffer bufferOf(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<uint64_t>(tensor.nbytes())};
}

// A tensor's elements in one contiguous piece: the tensor itself where its memory holds just that,
// else a temporary that copyBack() copies to it. Gradients do not flow through collectives:
// detached.
class Flat {
 public:
  enum class Use { kRead, kReadWrite, kWrite };

  Flat(const at::Tensor& tensor, Use use) : target_(tensor.detach()) {
    // Views can say that their elements are negated or conjugated: the memory does not show it.
    const bool plain = !target_.is_neg() && !target_.is_conj();
    if (plain && target_.is_contiguous()) {
      memory_ = target_;
    } else {
      memory_ = use == Use::kWrite
                    ? at::empty(target_.sizes(), target_.options(), at::MemoryFormat::Contiguous)
                    : target_.resolve_neg().resolve_conj().contiguous();
      copied_ = use != Use::kRead;
    }
  }

  const at::Tensor& memory() const { return memory_; }
  Buffer buffer() const { return bufferOf(memory_); }
  bool copied() const { return copied_; }
  void copyBack() const { target_.copy_(memory_); }

 private:
  at::Tensor target_;
  at::Tensor memory_;
  bool copied_ = false;
};

}  // namespace ringcomm
