#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "reduce/dtype.h"

namespace ringcomm {

enum class ReduceOp : uint8_t { kNone, kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor };

const char* reduceOpName(ReduceOp op) noexcept;

// Instruction sets with kernels of their own. Each one's results are bitwise those of kScalar.
enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kNeon };

const char* isaName(Isa isa) noexcept;

// Those that this machine can run, slowest first; never empty.
std::vector<Isa> supportedIsas();

// The fastest supported one, or the one that `forced` names ("scalar", "avx2", "avx512", "neon";
// "" or "auto" does not force). Naming one that this machine lacks is an error.
Result<Isa> selectIsa(std::string_view forced);

// The loops for one dtype and op. n counts elements. dst and src need no alignment beyond the
// element's, and may be equal but not otherwise overlap. Callable from any thread.
struct ReduceKernel {
  // dst[i] = dst[i] op src[i]. 16-bit floats are computed in float32 and rounded once.
  void (*accumulate)(void* dst, const void* src, size_t n);
  // dst[i] = srcs[0][i] op .. op srcs[parts - 1][i], in this order; 16-bit floats accumulate in
  // float32 over all parts and are rounded once. dst may be one of the sources.
  void (*combine)(void* dst, const void* const* srcs, size_t parts, size_t n);
  // dst[i] = dst[i] / divisor, integers truncating as C++ does; null unless the op is AVG.
  void (*divide)(void* dst, size_t n, int64_t divisor);
};

// nullptr where torch defines no such reduction (BAND on floats, AVG on bool, anything on complex).
const ReduceKernel* findKernel(DType dtype, ReduceOp op, Isa isa) noexcept;

}  // namespace ringcomm
