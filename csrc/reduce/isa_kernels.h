#pragma once

#include "reduce/kernels.h"

// Forced, because a lane helper that is left out of line moves its vectors through memory.
#define RC_LANE_INLINE inline __attribute__((always_inline))

// One lookup per instruction set, each from its own instantiation of kernels.inl. dispatch.cpp
// picks among them; nullptr where torch defines no such reduction.
namespace ringcomm {

namespace scalar {
const ReduceKernel* find(DType dtype, ReduceOp op) noexcept;
}

#if defined(__x86_64__)
namespace avx2 {
const ReduceKernel* find(DType dtype, ReduceOp op) noexcept;
}
namespace avx512 {
const ReduceKernel* find(DType dtype, ReduceOp op) noexcept;
}
#endif

#if defined(__aarch64__)
namespace neon {
const ReduceKernel* find(DType dtype, ReduceOp op) noexcept;
}
#endif

}  // namespace ringcomm
