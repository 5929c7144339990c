// The loops, written once and compiled per instruction set. Included inside an unnamed namespace,
// after lanes.inl and a HalfLanes. Vectors are the compiler's own (vector_size), so the code does
// not hang on what the optimiser makes of a scalar loop; a short tail goes through the same
// vector code in a padded buffer.
// Cost per call: accumulate reads 2n elements and writes n, combine reads parts * n and writes n.

template <typename V>
using ElementOf = std::remove_cv_t<std::remove_reference_t<decltype(std::declval<V&>()[0])>>;

struct Sum {
  template <typename V>
  static RC_LANE_INLINE V of(V a, V b) {
    return a + b;
  }
};

struct Product {
  template <typename V>
  static RC_LANE_INLINE V of(V a, V b) {
    return a * b;
  }
};

struct And {
  template <typename V>
  static RC_LANE_INLINE V of(V a, V b) {
    return a & b;
  }
};

struct Or {
  template <typename V>
  static RC_LANE_INLINE V of(V a, V b) {
    return a | b;
  }
};

struct Xor {
  template <typename V>
  static RC_LANE_INLINE V of(V a, V b) {
    return a ^ b;
  }
};

// Both orders are taken and joined, so that the result does not depend on which rank's value comes
// first: they differ only when the values are zeros of either sign, or when one is NaN. OR keeps
// the sign of -0, and a NaN stays one whatever is ORed into it.
struct Min {
  template <typename V>
  static RC_LANE_INLINE V of(V a, V b) {
    using T = ElementOf<V>;
    if constexpr (std::is_floating_point_v<T>) {
      using Bits = Vector<Unsigned<T>>;
      return as<V>(as<Bits>(a < b ? a : b) | as<Bits>(b < a ? b : a));
    } else {
      return a < b ? a : b;
    }
  }
};

// As Min, with AND to prefer +0. AND can take a NaN apart; but where one of the two is NaN each
// order yields its second operand, so they compare unequal, and those elements are set to all ones.
struct Max {
  template <typename V>
  static RC_LANE_INLINE V of(V a, V b) {
    using T = ElementOf<V>;
    if constexpr (std::is_floating_point_v<T>) {
      using Bits = Vector<Unsigned<T>>;
      const V ab = a > b ? a : b;
      const V ba = b > a ? b : a;
      return as<V>((as<Bits>(ab) & as<Bits>(ba)) | as<Bits>(ab != ba));
    } else {
      return a > b ? a : b;
    }
  }
};

template <typename Op, typename Values>
RC_LANE_INLINE Values apply(Values a, Values b) {
  if constexpr (std::is_same_v<Values, FloatPair>) {
    return {Op::of(a.first, b.first), Op::of(a.second, b.second)};
  } else {
    return Op::of(a, b);
  }
}

template <typename Values>
RC_LANE_INLINE Values quotient(Values v, double divisor) {
  if constexpr (std::is_same_v<Values, FloatPair>) {
    return {v.first / static_cast<float>(divisor), v.second / static_cast<float>(divisor)};
  } else {
    return v / static_cast<ElementOf<Values>>(divisor);
  }
}

// The first `bytes` of a vector; what lies behind them in memory is not touched.
template <typename Lanes>
RC_LANE_INLINE typename Lanes::Values loadPart(const std::byte* from, size_t bytes) {
  alignas(kVectorBytes) std::byte padded[kVectorBytes] = {};
  __builtin_memcpy(padded, from, bytes);
  return Lanes::load(padded);
}

template <typename Lanes>
RC_LANE_INLINE void storePart(std::byte* to, typename Lanes::Values v, size_t bytes) {
  alignas(kVectorBytes) std::byte padded[kVectorBytes];
  Lanes::store(padded, v);
  __builtin_memcpy(to, padded, bytes);
}

template <typename Lanes, typename Op>
void accumulate(void* dst, const void* src, size_t n) {
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  const size_t bytes = n * Lanes::kSize;
  const size_t whole = bytes - bytes % kVectorBytes;
#pragma GCC unroll 4
  for (size_t at = 0; at < whole; at += kVectorBytes) {
    Lanes::store(to + at, apply<Op>(Lanes::load(to + at), Lanes::load(from + at)));
  }
  if (const size_t rest = bytes - whole; rest != 0) {
    const auto a = loadPart<Lanes>(to + whole, rest);
    const auto b = loadPart<Lanes>(from + whole, rest);
    storePart<Lanes>(to + whole, apply<Op>(a, b), rest);
  }
}

// kBlock vectors of dst at a time stay in registers while all parts go by.
template <typename Lanes, typename Op, size_t kBlock>
RC_LANE_INLINE void combineBlock(std::byte* dst, const void* const* srcs, size_t parts, size_t at) {
  typename Lanes::Values sums[kBlock];
  const auto* first = static_cast<const std::byte*>(srcs[0]) + at;
#pragma GCC unroll 4
  for (size_t k = 0; k < kBlock; ++k) {
    sums[k] = Lanes::load(first + k * kVectorBytes);
  }
  for (size_t part = 1; part < parts; ++part) {
    const auto* from = static_cast<const std::byte*>(srcs[part]) + at;
#pragma GCC unroll 4
    for (size_t k = 0; k < kBlock; ++k) {
      sums[k] = apply<Op>(sums[k], Lanes::load(from + k * kVectorBytes));
    }
  }
#pragma GCC unroll 4
  for (size_t k = 0; k < kBlock; ++k) {
    Lanes::store(dst + at + k * kVectorBytes, sums[k]);
  }
}

template <typename Lanes, typename Op>
void combine(void* dst, const void* const* srcs, size_t parts, size_t n) {
  constexpr size_t kBlock = 4;
  auto* to = static_cast<std::byte*>(dst);
  const size_t bytes = n * Lanes::kSize;
  size_t at = 0;
  for (; bytes - at >= kBlock * kVectorBytes; at += kBlock * kVectorBytes) {
    combineBlock<Lanes, Op, kBlock>(to, srcs, parts, at);
  }
  for (; bytes - at >= kVectorBytes; at += kVectorBytes) {
    combineBlock<Lanes, Op, 1>(to, srcs, parts, at);
  }
  if (const size_t rest = bytes - at; rest != 0) {
    auto sum = loadPart<Lanes>(static_cast<const std::byte*>(srcs[0]) + at, rest);
    for (size_t part = 1; part < parts; ++part) {
      sum = apply<Op>(sum, loadPart<Lanes>(static_cast<const std::byte*>(srcs[part]) + at, rest));
    }
    storePart<Lanes>(to + at, sum, rest);
  }
}

template <typename Lanes>
void divideFloats(void* dst, size_t n, int64_t divisor) {
  auto* to = static_cast<std::byte*>(dst);
  const auto by = static_cast<double>(divisor);
  const size_t bytes = n * Lanes::kSize;
  const size_t whole = bytes - bytes % kVectorBytes;
  for (size_t at = 0; at < whole; at += kVectorBytes) {
    Lanes::store(to + at, quotient(Lanes::load(to + at), by));
  }
  if (const size_t rest = bytes - whole; rest != 0) {
    storePart<Lanes>(to + whole, quotient(loadPart<Lanes>(to + whole, rest), by), rest);
  }
}

// In 64 bits, since the divisor may be more than the element type can hold.
template <typename T>
void divideInts(void* dst, size_t n, int64_t divisor) {
  auto* to = static_cast<T*>(dst);
  for (size_t i = 0; i < n; ++i) {
    to[i] = static_cast<T>(static_cast<int64_t>(to[i]) / divisor);
  }
}

template <typename Lanes, typename Op, void (*kDivide)(void*, size_t, int64_t) = nullptr>
constexpr ReduceKernel kKernel = {&accumulate<Lanes, Op>, &combine<Lanes, Op>, kDivide};

template <typename Lanes>
const ReduceKernel* findFloat(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kSum:
      return &kKernel<Lanes, Sum>;
    case ReduceOp::kAvg:
      return &kKernel<Lanes, Sum, &divideFloats<Lanes>>;
    case ReduceOp::kProduct:
      return &kKernel<Lanes, Product>;
    case ReduceOp::kMin:
      return &kKernel<Lanes, Min>;
    case ReduceOp::kMax:
      return &kKernel<Lanes, Max>;
    default:
      return nullptr;
  }
}

// Sums and products are taken unsigned: the same bits, and overflow wraps instead of being
// undefined. Types of one width then share those loops.
template <typename T>
const ReduceKernel* findInt(ReduceOp op) noexcept {
  using Wrapping = IntLanes<Unsigned<T>>;
  switch (op) {
    case ReduceOp::kSum:
      return &kKernel<Wrapping, Sum>;
    case ReduceOp::kAvg:
      return &kKernel<Wrapping, Sum, &divideInts<T>>;
    case ReduceOp::kProduct:
      return &kKernel<Wrapping, Product>;
    case ReduceOp::kMin:
      return &kKernel<IntLanes<T>, Min>;
    case ReduceOp::kMax:
      return &kKernel<IntLanes<T>, Max>;
    case ReduceOp::kBand:
      return &kKernel<Wrapping, And>;
    case ReduceOp::kBor:
      return &kKernel<Wrapping, Or>;
    case ReduceOp::kBxor:
      return &kKernel<Wrapping, Xor>;
    default:
      return nullptr;
  }
}

inline const ReduceKernel* findBool(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor:
      return &kKernel<BoolLanes, Or>;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBand:
      return &kKernel<BoolLanes, And>;
    case ReduceOp::kBxor:
      return &kKernel<BoolLanes, Xor>;
    default:
      return nullptr;
  }
}

inline const ReduceKernel* findAny(DType dtype, ReduceOp op) noexcept {
  switch (dtype) {
    case DType::kFloat64:
      return findFloat<FloatLanes<double>>(op);
    case DType::kFloat32:
      return findFloat<FloatLanes<float>>(op);
    case DType::kFloat16:
      return findFloat<HalfLanes>(op);
    case DType::kBFloat16:
      return findFloat<BrainLanes>(op);
    case DType::kInt8:
      return findInt<int8_t>(op);
    case DType::kInt16:
      return findInt<int16_t>(op);
    case DType::kInt32:
      return findInt<int32_t>(op);
    case DType::kInt64:
      return findInt<int64_t>(op);
    case DType::kUInt8:
      return findInt<uint8_t>(op);
    case DType::kBool:
      return findBool(op);
    default:
      return nullptr;
  }
}
