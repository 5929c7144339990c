// How kVectorBytes of memory become values that an op can work on, and back. Included inside an
// unnamed namespace of each instruction set, after its kVectorBytes; nothing is included from here,
// since a standard header compiled for AVX would leak AVX code into the rest of the program.
//
// Each *Lanes type has: kSize (bytes of an element), Values, load and store. A store replaces every
// NaN by one quiet NaN, because payloads depend on operand order and on the processor, and ranks
// must agree bitwise. It costs a compare and a blend, hidden behind the loads.

template <typename T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVectorBytes)));
};
template <typename T>
using Vector = typename VectorOf<T>::Type;

template <size_t kBytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using Type = uint8_t;
};
template <>
struct UnsignedOf<2> {
  using Type = uint16_t;
};
template <>
struct UnsignedOf<4> {
  using Type = uint32_t;
};
template <>
struct UnsignedOf<8> {
  using Type = uint64_t;
};
template <typename T>
using Unsigned = typename UnsignedOf<sizeof(T)>::Type;

template <typename To, typename From>
RC_LANE_INLINE To as(From from) {
  return __builtin_bit_cast(To, from);
}

template <typename V>
RC_LANE_INLINE V loadVector(const std::byte* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}

template <typename V>
RC_LANE_INLINE void storeVector(std::byte* to, V v) {
  __builtin_memcpy(to, &v, sizeof(V));
}

template <typename T>
constexpr Unsigned<T> kQuietNan = 0;
template <>
constexpr uint32_t kQuietNan<float> = 0x7fc00000U;
template <>
constexpr uint64_t kQuietNan<double> = 0x7ff8000000000000U;

template <typename T>
RC_LANE_INLINE Vector<T> canonicalNan(Vector<T> v) {
  return v == v ? v : as<Vector<T>>(Vector<Unsigned<T>>{} + kQuietNan<T>);
}

template <typename T>
struct IntLanes {
  static constexpr size_t kSize = sizeof(T);
  using Values = Vector<T>;
  static RC_LANE_INLINE Values load(const std::byte* from) { return loadVector<Values>(from); }
  static RC_LANE_INLINE void store(std::byte* to, Values v) { storeVector(to, v); }
};

template <typename T>
struct FloatLanes {
  static constexpr size_t kSize = sizeof(T);
  using Values = Vector<T>;
  static RC_LANE_INLINE Values load(const std::byte* from) { return loadVector<Values>(from); }
  static RC_LANE_INLINE void store(std::byte* to, Values v) { storeVector(to, canonicalNan<T>(v)); }
};

// Any byte but 0 is true, so that AND and XOR are those of truth values; stored as 0 or 1.
struct BoolLanes {
  static constexpr size_t kSize = 1;
  using Values = Vector<uint8_t>;
  static RC_LANE_INLINE Values load(const std::byte* from) {
    return as<Values>(loadVector<Values>(from) != 0) & 1;
  }
  static RC_LANE_INLINE void store(std::byte* to, Values v) { storeVector(to, v); }
};

using Words = Vector<uint32_t>;
using Floats = Vector<float>;

// A vector of 16-bit floats, widened. Which element is where is each *Lanes type's own business.
struct FloatPair {
  Floats first;
  Floats second;
};

// A 32-bit word holds two elements, and each is a float32 once the other is shifted or masked
// away: no shuffle either way, and about 12 instructions a word with the rounding.
struct BrainLanes {
  static constexpr size_t kSize = 2;
  using Values = FloatPair;
  static RC_LANE_INLINE Values load(const std::byte* from) {
    const Words words = loadVector<Words>(from);
    return {as<Floats>(words << 16), as<Floats>(words & 0xffff0000U)};
  }
  static RC_LANE_INLINE void store(std::byte* to, Values v) {
    storeVector(to, (rounded(v.first) >> 16) | (rounded(v.second) & 0xffff0000U));
  }

 private:
  // To nearest even in the upper half; the lower half is left over. NaN is set aside, since the
  // carry could turn it into infinity.
  static RC_LANE_INLINE Words rounded(Floats v) {
    const Words bits = as<Words>(v);
    const Words up = bits + 0x7fffU + ((bits >> 16) & 1U);
    return v == v ? up : Words{} + kQuietNan<float>;
  }
};
