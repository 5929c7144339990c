#if defined(__aarch64__)

#include "reduce/isa_kernels.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <arm_neon.h>

// Differs from the scalar kernels, which are NEON here too, by the processor's own float16
// conversions.
namespace ringcomm::neon {

namespace {
constexpr size_t kVectorBytes = 16;
#include "reduce/lanes.inl"

struct HalfLanes {
  static constexpr size_t kSize = 2;
  using Values = FloatPair;
  static RC_LANE_INLINE Values load(const std::byte* from) {
    return {as<Floats>(vcvt_f32_f16(loadVector<float16x4_t>(from))),
            as<Floats>(vcvt_f32_f16(loadVector<float16x4_t>(from + 8)))};
  }
  static RC_LANE_INLINE void store(std::byte* to, Values v) {
    storeVector(to, narrowed(v.first));
    storeVector(to + 8, narrowed(v.second));
  }

 private:
  static RC_LANE_INLINE float16x4_t narrowed(Floats v) {
    return vcvt_f16_f32(as<float32x4_t>(canonicalNan<float>(v)));
  }
};

#include "reduce/kernels.inl"
}  // namespace

const ReduceKernel* find(DType dtype, ReduceOp op) noexcept { return findAny(dtype, op); }

}  // namespace ringcomm::neon

#endif  // __aarch64__
