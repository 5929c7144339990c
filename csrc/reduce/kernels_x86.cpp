#if defined(__x86_64__)

#include "reduce/isa_kernels.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <immintrin.h>

// Everything between push_options and pop_options has internal linkage but for the two lookups:
// otherwise the linker might keep an AVX copy of a shared function for machines without AVX.

#pragma GCC push_options
#pragma GCC target("avx2,f16c")
namespace ringcomm::avx2 {

namespace {
constexpr size_t kVectorBytes = 32;
#include "reduce/lanes.inl"

struct HalfLanes {
  static constexpr size_t kSize = 2;
  using Values = FloatPair;
  static RC_LANE_INLINE Values load(const std::byte* from) {
    return {as<Floats>(_mm256_cvtph_ps(loadVector<__m128i>(from))),
            as<Floats>(_mm256_cvtph_ps(loadVector<__m128i>(from + 16)))};
  }
  static RC_LANE_INLINE void store(std::byte* to, Values v) {
    storeVector(to, narrowed(v.first));
    storeVector(to + 16, narrowed(v.second));
  }

 private:
  static RC_LANE_INLINE __m128i narrowed(Floats v) {
    return _mm256_cvtps_ph(as<__m256>(canonicalNan<float>(v)), _MM_FROUND_TO_NEAREST_INT);
  }
};

#include "reduce/kernels.inl"
}  // namespace

const ReduceKernel* find(DType dtype, ReduceOp op) noexcept { return findAny(dtype, op); }

}  // namespace ringcomm::avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
namespace ringcomm::avx512 {

namespace {
constexpr size_t kVectorBytes = 64;
#include "reduce/lanes.inl"

struct HalfLanes {
  static constexpr size_t kSize = 2;
  using Values = FloatPair;
  static RC_LANE_INLINE Values load(const std::byte* from) {
    return {as<Floats>(_mm512_maskz_cvtph_ps(kAll, loadVector<__m256i>(from))),
            as<Floats>(_mm512_maskz_cvtph_ps(kAll, loadVector<__m256i>(from + 32)))};
  }
  static RC_LANE_INLINE void store(std::byte* to, Values v) {
    storeVector(to, narrowed(v.first));
    storeVector(to + 32, narrowed(v.second));
  }

 private:
  // The forms without a mask make GCC 12 warn of an uninitialised value inside its own header.
  static constexpr __mmask16 kAll = 0xffff;

  static RC_LANE_INLINE __m256i narrowed(Floats v) {
    return _mm512_maskz_cvtps_ph(kAll, as<__m512>(canonicalNan<float>(v)),
                                 _MM_FROUND_TO_NEAREST_INT);
  }
};

#include "reduce/kernels.inl"
}  // namespace

const ReduceKernel* find(DType dtype, ReduceOp op) noexcept { return findAny(dtype, op); }

}  // namespace ringcomm::avx512
#pragma GCC pop_options

#endif  // __x86_64__
