// float16 for instruction sets without conversions of their own; bitwise what F16C gives. Included
// after lanes.inl. Integer work on words, but for subnormals, where adding and subtracting a power
// of two lets the float adder normalise and round: exact, and right even when flushing is on.
// Words are compared as signed, which SSE2 can do in one instruction; no operand has the top bit.
struct HalfLanes {
  static constexpr size_t kSize = 2;
  using Values = FloatPair;
  static RC_LANE_INLINE Values load(const std::byte* from) {
    const Words words = loadVector<Words>(from);
    return {widened(words & 0xffffU), widened(words >> 16)};
  }
  static RC_LANE_INLINE void store(std::byte* to, Values v) {
    storeVector(to, narrowed(v.first) | (narrowed(v.second) << 16));
  }

 private:
  static constexpr uint32_t kRebias = 112U << 23;  // Between the exponents' biases, 127 - 15.
  static constexpr uint32_t kSmallestNormal = 113U << 23;  // 2^-14 as a float32.
  static constexpr uint32_t kHalf = 126U << 23;            // 0.5, whose ulp is float16's smallest.
  static constexpr int32_t kOverflow = 143 << 23;  // 2^16; below, rounding may yet reach it.
  static constexpr int32_t kInfinity = 255 << 23;
  static constexpr uint32_t kQuietHalfNan = 0x7e00U;
  using Signed = Vector<int32_t>;

  static RC_LANE_INLINE Floats widened(Words half) {
    const Words magnitude = (half & 0x7fffU) << 13;
    const Words normal = magnitude + kRebias;
    const Words subnormal =
        as<Words>(as<Floats>(magnitude + kSmallestNormal) - as<Floats>(Words{} + kSmallestNormal));
    const Words finite = as<Signed>(magnitude) < (1 << 23) ? subnormal : normal;
    const Words toSpecial = as<Words>(as<Signed>(magnitude) >= (31 << 23)) & kRebias;
    return as<Floats>((finite + toSpecial) | ((half & 0x8000U) << 16));
  }

  static RC_LANE_INLINE Words narrowed(Floats v) {
    const Words bits = as<Words>(v);
    const Words magnitude = bits & 0x7fffffffU;
    const Signed order = as<Signed>(magnitude);
    const Words normal = (magnitude - kRebias + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    const Words subnormal = as<Words>(as<Floats>(magnitude) + 0.5F) - kHalf;
    const Words rounded = order < static_cast<int32_t>(kSmallestNormal) ? subnormal : normal;
    const Words finite = order < kOverflow ? rounded : Words{} + 0x7c00U;
    const Words sign = (bits >> 16) & 0x8000U;
    return order > kInfinity ? Words{} + kQuietHalfNan : finite | sign;
  }
};
