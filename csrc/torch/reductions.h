#pragma once

#include "torch/tensors.h"

#include <torch/csrc/distributed/c10d/Types.hpp>

// How torch's reduce ops become the engine's. Included by backend.cpp only.
namespace ringcomm {

// The caller's own scaling before a sum, and what remains for the engine to do.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  OpDesc::Scaled scaled = OpDesc::Scaled::kNo;
};

// PREMUL_SUM multiplies first. So does AVG in float16, whose sum may overflow where the average
// does not; in the other types the sum is divided at the end, which loses less.
inline Reduction reductionOf(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  using Type = c10d::ReduceOp::RedOpType;
  switch (op.op_) {
    case Type::PREMUL_SUM:
      return {ReduceOp::kSum, OpDesc::Scaled::kByFactor};
    case Type::AVG:
      return tensor.scalar_type() == at::kHalf ? Reduction{ReduceOp::kSum, OpDesc::Scaled::kByWorld}
                                               : Reduction{ReduceOp::kAvg};
    case Type::SUM:
      return {ReduceOp::kSum};
    case Type::PRODUCT:
      return {ReduceOp::kProduct};
    case Type::MIN:
      return {ReduceOp::kMin};
    case Type::MAX:
      return {ReduceOp::kMax};
    case Type::BAND:
      return {ReduceOp::kBand};
    case Type::BOR:
      return {ReduceOp::kBor};
    case Type::BXOR:
      return {ReduceOp::kBxor};
    default:
      TORCH_CHECK_VALUE(false, "ringcomm: unknown reduce op ", static_cast<int>(op.op_));
  }
}

// The caller's own part of the reduction, on the memory that is sent.
inline void scaleFirst(const at::Tensor& memory, const c10d::ReduceOp& op, int world) {
  const OpDesc::Scaled scaled = reductionOf(memory, op).scaled;
  if (scaled == OpDesc::Scaled::kByWorld) {
    memory.mul_(1.0 / world);
  } else if (scaled == OpDesc::Scaled::kByFactor) {
    const auto* factor = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
    if (factor->tensor_factor.defined()) {
      memory.mul_(factor->tensor_factor.reshape({}));  // memory may have no dimension
    } else {
      memory.mul_(factor->double_factor);
    }
  }
}

// The same where the input must stay as it is: a scaled copy, if scaling is needed at all.
inline at::Tensor scaledCopy(const at::Tensor& input, const c10d::ReduceOp& op, int world) {
  if (reductionOf(input, op).scaled == OpDesc::Scaled::kNo) {
    return input;
  }
  at::Tensor copy = input.detach().clone(at::MemoryFormat::Contiguous);
  scaleFirst(copy, op, world);
  return copy;
}

// Before anything is scaled or sent: whether the reduction exists for the elements, and its factor.
inline void checkReducible(const at::Tensor& tensor, const c10d::ReduceOp& op, Isa isa,
                           const char* doing) {
  using Type = c10d::ReduceOp::RedOpType;
  const bool scaled = op.op_ == Type::PREMUL_SUM;
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct,
                               ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kBand,
                               ReduceOp::kBor, ReduceOp::kBxor};
  TORCH_CHECK_VALUE(scaled || op.op_ <= Type::BXOR, "ringcomm: ", doing, ": unknown reduce op");
  const ReduceOp wanted = scaled ? ReduceOp::kSum : kOps[op.op_];
  const DType dtype = dtypeOf(tensor.scalar_type(), doing);
  TORCH_CHECK_TYPE(
      findKernel(dtype, wanted, isa) != nullptr && (!scaled || tensor.is_floating_point()),
      "ringcomm: ", doing, " with ", scaled ? "premul_sum" : reduceOpName(wanted),
      " is not defined for tensors of dtype ", dtypeName(dtype));
  if (scaled) {
    const auto* factor = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
    TORCH_CHECK_VALUE(factor != nullptr, "ringcomm: ", doing, ": premul_sum without a factor");
  }
}

}  // namespace ringcomm
