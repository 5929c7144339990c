#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/version.h>

// Every difference between the torch versions that the sources must know about.

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11 || TORCH_VERSION_MINOR > 14
#error "ringcomm supports torch 2.11 to 2.14"
#endif

// What is virtual from 2.14 on; before, nobody calls it.
#if TORCH_VERSION_MINOR >= 14
#define RC_OVERRIDE_2_14 override
#else
#define RC_OVERRIDE_2_14
#endif

namespace ringcomm {

// 2.11 has no type for it.
#if TORCH_VERSION_MINOR >= 12
inline constexpr auto kReduceScatterCoalesced = c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#else
inline constexpr auto kReduceScatterCoalesced = c10d::OpType::UNKNOWN;
#endif

}  // namespace ringcomm
