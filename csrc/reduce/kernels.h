#pragma once

#include "base/status.h"
#include "reduce/dtype.h"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

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
//
// Ranks must end up with equal bits, so results depend on the operands' values alone, neither on
// which of two comes first nor on the instruction set:
// - a NaN operand makes the result NaN, also in MIN and MAX, and every NaN that is stored is the
//   positive quiet one without payload;
// - MIN takes -0 to be below +0, MAX the reverse;
// - integer SUM and PRODUCT wrap;
// - any nonzero byte is a true bool, true is stored as 1, and SUM is OR, PRODUCT and MIN are AND,
//   MAX is OR.
// They follow the calling thread's rounding and flush-to-zero modes, where the processor has them.
struct ReduceKernel {
  // dst[i] = dst[i] op src[i]. 16-bit floats are computed in float32 and rounded once.
  void (*accumulate)(void* dst, const void* src, size_t n);
  // dst[i] = srcs[0][i] op .. op srcs[parts - 1][i], in this order; 16-bit floats accumulate in
  // float32 over all parts and are rounded once. dst may be one of the sources. parts is at
  // least 1.
  void (*combine)(void* dst, const void* const* srcs, size_t parts, size_t n);
  // dst[i] = dst[i] / divisor, integers truncating as C++ does; null unless the op is AVG, for
  // which the two above only sum. divisor is at least 1.
  void (*divide)(void* dst, size_t n, int64_t divisor);
};

// nullptr where torch defines no such reduction (BAND on floats, AVG on bool, anything on complex),
// or where isa belongs to another processor family. The machine must support isa.
const ReduceKernel* findKernel(DType dtype, ReduceOp op, Isa isa) noexcept;

}  // namespace ringcomm
