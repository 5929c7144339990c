#include "reduce/isa_kernels.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

// What the compiler's base target has, without run-time checks: SSE2 on x86-64, plain NEON or
// scalar instructions elsewhere.
namespace ringcomm::scalar {

namespace {
constexpr size_t kVectorBytes = 16;
// clang-format off: each uses the one before it.
#include "reduce/lanes.inl"
#include "reduce/half_portable.inl"
#include "reduce/kernels.inl"
// clang-format on
}  // namespace

const ReduceKernel* find(DType dtype, ReduceOp op) noexcept { return findAny(dtype, op); }

}  // namespace ringcomm::scalar
