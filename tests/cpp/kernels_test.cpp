#include "reduce/kernels.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace ringcomm;

namespace {

// Elements travel through these tests as their bits, whatever their type.
using Bits = std::vector<uint64_t>;

constexpr DType kReducible[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                                DType::kInt64,   DType::kInt32,   DType::kInt16,   DType::kInt8,
                                DType::kUInt8,   DType::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax, ReduceOp::kBand, ReduceOp::kBor,     ReduceOp::kBxor};
constexpr size_t kMaxSize = 1027;

struct FloatFormat {
  int exponentBits;
  int mantissaBits;

  int bias() const { return (1 << (exponentBits - 1)) - 1; }
  uint64_t infinity() const { return ((1ULL << exponentBits) - 1) << mantissaBits; }
  uint64_t quietNan() const { return infinity() | (1ULL << (mantissaBits - 1)); }
  uint64_t signBit() const { return 1ULL << (exponentBits + mantissaBits); }
};

bool isFloat(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

FloatFormat formatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return {11, 52};
    case DType::kFloat32:
      return {8, 23};
    case DType::kFloat16:
      return {5, 10};
    default:
      return {8, 7};
  }
}

// By the definition of the formats, in double arithmetic.
double decodeFloat(uint64_t bits, const FloatFormat& format) {
  const auto exponent = static_cast<int>((bits & format.infinity()) >> format.mantissaBits);
  const uint64_t mantissa = bits & ((1ULL << format.mantissaBits) - 1);
  const double sign = (bits & format.signBit()) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << format.exponentBits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  const uint64_t whole = exponent == 0 ? mantissa : mantissa + (1ULL << format.mantissaBits);
  const int power = std::max(exponent, 1) - format.bias() - format.mantissaBits;
  return sign * std::ldexp(static_cast<double>(whole), power);
}

uint64_t encodeFloat(double value, const FloatFormat& format) {
  if (std::isnan(value)) {
    return format.quietNan();
  }
  const uint64_t sign = std::signbit(value) ? format.signBit() : 0;
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) {
    return sign | format.infinity();
  }
  const int smallest = 1 - format.bias();
  const int power = magnitude == 0 ? smallest : std::max(std::ilogb(magnitude), smallest);
  const double ulps = std::nearbyint(std::ldexp(magnitude, format.mantissaBits - power));
  // A full mantissa carries into the exponent by itself, and a normal one brings its hidden bit.
  const uint64_t base = static_cast<uint64_t>(power - smallest) << format.mantissaBits;
  return sign | std::min(base + static_cast<uint64_t>(ulps), format.infinity());
}

double floatStep(DType dtype, ReduceOp op, double a, double b) {
  // A sum or product of two float32 in double, rounded to float32, is the correctly rounded one.
  const auto rounded = [dtype](double v) {
    return dtype == DType::kFloat64 ? v : static_cast<double>(static_cast<float>(v));
  };
  switch (op) {
    case ReduceOp::kProduct:
      return rounded(a * b);
    case ReduceOp::kMin:
    case ReduceOp::kMax: {
      if (std::isnan(a) || std::isnan(b)) {
        return std::numeric_limits<double>::quiet_NaN();
      }
      const auto key = [](double v) { return std::pair(v, !std::signbit(v)); };
      return (op == ReduceOp::kMin) == (key(a) < key(b)) ? a : b;
    }
    default:
      return rounded(a + b);
  }
}

int64_t signedValue(DType dtype, uint64_t bits) {
  const size_t unused = 64 - 8 * dtypeSize(dtype);
  return dtype == DType::kUInt8 || dtype == DType::kBool
             ? static_cast<int64_t>(bits)
             : static_cast<int64_t>(bits << unused) >> unused;
}

uint64_t truncated(DType dtype, uint64_t bits) {
  return bits & (~0ULL >> (64 - 8 * dtypeSize(dtype)));
}

uint64_t intStep(DType dtype, ReduceOp op, uint64_t a, uint64_t b) {
  const bool less = signedValue(dtype, a) < signedValue(dtype, b);
  switch (op) {
    case ReduceOp::kProduct:
      return truncated(dtype, a * b);
    case ReduceOp::kMin:
      return less ? a : b;
    case ReduceOp::kMax:
      return less ? b : a;
    case ReduceOp::kBand:
      return a & b;
    case ReduceOp::kBor:
      return a | b;
    case ReduceOp::kBxor:
      return a ^ b;
    default:
      return truncated(dtype, a + b);
  }
}

bool boolStep(ReduceOp op, bool a, bool b) {
  switch (op) {
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBand:
      return a && b;
    case ReduceOp::kBxor:
      return a != b;
    default:
      return a || b;
  }
}

// What element i of the reduction over `parts`, in their order, must be.
uint64_t expectedAt(DType dtype, ReduceOp op, const std::vector<Bits>& parts, size_t i) {
  if (isFloat(dtype)) {
    double value = decodeFloat(parts[0][i], formatOf(dtype));
    for (size_t p = 1; p < parts.size(); ++p) {
      value = floatStep(dtype, op, value, decodeFloat(parts[p][i], formatOf(dtype)));
    }
    return encodeFloat(value, formatOf(dtype));
  }
  uint64_t value = dtype == DType::kBool ? parts[0][i] != 0 : parts[0][i];
  for (size_t p = 1; p < parts.size(); ++p) {
    value = dtype == DType::kBool ? boolStep(op, value != 0, parts[p][i] != 0)
                                  : intStep(dtype, op, value, parts[p][i]);
  }
  return value;
}

Bits expectedOf(DType dtype, ReduceOp op, const std::vector<Bits>& parts) {
  Bits expected(parts[0].size());
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = expectedAt(dtype, op, parts, i);
  }
  return expected;
}

uint64_t expectedQuotient(DType dtype, uint64_t bits, int64_t divisor) {
  if (!isFloat(dtype)) {
    return truncated(dtype, static_cast<uint64_t>(signedValue(dtype, bits) / divisor));
  }
  double value = decodeFloat(bits, formatOf(dtype)) / static_cast<double>(divisor);
  if (dtype != DType::kFloat64) {
    value = static_cast<float>(value);
  }
  return encodeFloat(value, formatOf(dtype));
}

// Random bits, corner cases, and (for floats) values of like size, whose sums need rounding.
uint64_t randomElement(DType dtype, std::mt19937_64& random) {
  const uint64_t bits = truncated(dtype, random());
  const uint64_t kind = random() % 8;
  if (!isFloat(dtype)) {
    const uint64_t top = 1ULL << (8 * dtypeSize(dtype) - 1);
    const uint64_t corners[] = {0, 1, top, top - 1, truncated(dtype, ~0ULL), 2};
    return kind < 3 ? corners[random() % std::size(corners)] : bits;
  }
  const FloatFormat format = formatOf(dtype);
  const uint64_t sign = bits & format.signBit();
  if (kind < 2) {
    const uint64_t ulp = 1ULL << format.mantissaBits;
    const uint64_t corners[] = {0,                       // Zero.
                                1,                       // Smallest subnormal.
                                ulp - 1,                 // Largest subnormal.
                                ulp,                     // Smallest normal.
                                format.infinity() - 1,   // Largest finite.
                                format.infinity(),       // Infinity.
                                format.infinity() | 1,   // A signalling NaN.
                                format.quietNan() | 1};  // A quiet NaN with a payload.
    return sign | corners[random() % std::size(corners)];
  }
  if (kind < 6) {
    const uint64_t mantissa = bits & ((1ULL << format.mantissaBits) - 1);
    const auto exponent = static_cast<uint64_t>(format.bias()) - 2 + random() % 5;
    return sign | (exponent << format.mantissaBits) | mantissa;
  }
  return bits;
}

Bits randomElements(DType dtype, size_t n, std::mt19937_64& random) {
  Bits elements(n);
  std::ranges::generate(elements, [&] { return randomElement(dtype, random); });
  return elements;
}

// n elements at a chosen distance from a 64-byte boundary, with guard bytes around them.
class Placed {
 public:
  Placed(DType dtype, const Bits& elements, size_t n, size_t offset)
      : size_(dtypeSize(dtype)), n_(n), storage_(n * size_ + 2 * kGuard + 64, kGuardByte) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data()) + kGuard;
    begin_ = kGuard + (64 - address % 64) % 64 + offset * size_;
    storage_.resize(begin_ + n * size_ + kGuard, kGuardByte);
    for (size_t i = 0; i < n; ++i) {
      std::memcpy(data() + i * size_, &elements[i], size_);
    }
  }

  std::byte* data() { return storage_.data() + begin_; }

  Bits elements() {
    Bits elements(n_, 0);
    for (size_t i = 0; i < n_; ++i) {
      std::memcpy(&elements[i], data() + i * size_, size_);
    }
    return elements;
  }

  bool guardsIntact() const {
    const auto isGuard = [](std::byte b) { return b == kGuardByte; };
    const auto begin = storage_.begin() + static_cast<ptrdiff_t>(begin_);
    const auto end = begin + static_cast<ptrdiff_t>(n_ * size_);
    return std::all_of(storage_.begin(), begin, isGuard) &&
           std::all_of(end, storage_.end(), isGuard);
  }

 private:
  static constexpr size_t kGuard = 128;
  static constexpr std::byte kGuardByte{0xa5};

  size_t size_;
  size_t n_;
  size_t begin_ = 0;
  std::vector<std::byte> storage_;
};

// "" when the first elements of `expected` are what `placed` holds and nothing around it changed.
std::string difference(Placed& placed, const Bits& expected) {
  const Bits got = placed.elements();
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] != expected[i]) {
      std::ostringstream text;
      text << "element " << i << " of " << got.size() << std::hex << " is 0x" << got[i]
           << ", expected 0x" << expected[i];
      return text.str();
    }
  }
  return placed.guardsIntact() ? "" : "bytes outside the buffer were changed";
}

// Calls check(dtype, op, isa name, kernel) for every kernel that this machine can run.
template <typename Check>
void forEachKernel(const Check& check) {
  for (const DType dtype : kReducible) {
    for (const ReduceOp op : kOps) {
      for (const Isa isa : supportedIsas()) {
        if (const ReduceKernel* kernel = findKernel(dtype, op, isa)) {
          CAPTURE(dtypeName(dtype));
          CAPTURE(reduceOpName(op));
          CAPTURE(isaName(isa));
          check(dtype, op, *kernel);
        }
      }
    }
  }
}

std::vector<size_t> testedSizes() {
  std::vector<size_t> sizes;
  for (size_t n = 0; n <= 67; ++n) {
    sizes.push_back(n);
  }
  sizes.insert(sizes.end(), {127, 256, 515, kMaxSize});
  return sizes;
}

// One element through accumulate, for values stated in full.
uint64_t accumulateOne(DType dtype, ReduceOp op, Isa isa, uint64_t a, uint64_t b) {
  Placed dst(dtype, {a}, 1, 0);
  Placed src(dtype, {b}, 1, 0);
  findKernel(dtype, op, isa)->accumulate(dst.data(), src.data(), 1);
  return dst.elements()[0];
}

}  // namespace

TEST_CASE("accumulate gives the reference's bits at every size and alignment") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  constexpr std::pair<size_t, size_t> kOffsets[] = {{0, 0}, {1, 0}, {0, 3}, {5, 7}};
  forEachKernel([&](DType dtype, ReduceOp op, const ReduceKernel& kernel) {
    const Bits a = randomElements(dtype, kMaxSize, random);
    const Bits b = randomElements(dtype, kMaxSize, random);
    const Bits expected = expectedOf(dtype, op, {a, b});
    for (const size_t n : testedSizes()) {
      for (const auto& [dstOffset, srcOffset] : kOffsets) {
        CAPTURE(n);
        CAPTURE(dstOffset);
        CAPTURE(srcOffset);
        Placed dst(dtype, a, n, dstOffset);
        Placed src(dtype, b, n, srcOffset);
        kernel.accumulate(dst.data(), src.data(), n);
        CHECK(difference(dst, expected) == "");
        CHECK(difference(src, b) == "");
      }
    }
  });
}

TEST_CASE("accumulate takes its operands in either order, or one buffer as both") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  forEachKernel([&](DType dtype, ReduceOp op, const ReduceKernel& kernel) {
    const Bits a = randomElements(dtype, kMaxSize, random);
    const Bits b = randomElements(dtype, kMaxSize, random);
    Placed ab(dtype, a, kMaxSize, 0);
    Placed ba(dtype, b, kMaxSize, 1);
    kernel.accumulate(ab.data(), Placed(dtype, b, kMaxSize, 0).data(), kMaxSize);
    kernel.accumulate(ba.data(), Placed(dtype, a, kMaxSize, 0).data(), kMaxSize);
    CHECK(difference(ab, ba.elements()) == "");
    Placed both(dtype, a, kMaxSize, 1);
    kernel.accumulate(both.data(), both.data(), kMaxSize);
    CHECK(difference(both, expectedOf(dtype, op, {a, a})) == "");
  });
}

TEST_CASE("combine folds 1 to 9 parts in order, also into one of them") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  forEachKernel([&](DType dtype, ReduceOp op, const ReduceKernel& kernel) {
    std::vector<Bits> parts;
    for (size_t count = 1; count <= 9; ++count) {
      parts.push_back(randomElements(dtype, kMaxSize, random));
      const Bits expected = expectedOf(dtype, op, parts);
      for (const size_t n : {size_t{0}, size_t{1}, size_t{31}, size_t{67}, kMaxSize}) {
        CAPTURE(count);
        CAPTURE(n);
        std::vector<Placed> placed;
        std::vector<const void*> srcs;
        for (size_t p = 0; p < count; ++p) {
          placed.emplace_back(dtype, parts[p], n, p % 3);
          srcs.push_back(placed.back().data());
        }
        Placed dst(dtype, parts[0], n, 1);
        kernel.combine(dst.data(), srcs.data(), count, n);
        CHECK(difference(dst, expected) == "");
        const size_t target = random() % count;
        kernel.combine(placed[target].data(), srcs.data(), count, n);
        CHECK(difference(placed[target], expected) == "");
      }
    }
  });
}

TEST_CASE("every 16-bit float is widened and rounded as its format says") {
  Bits all(1U << 16);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = i;
  }
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const Isa isa : supportedIsas()) {
      CAPTURE(dtypeName(dtype));
      CAPTURE(isaName(isa));
      const FloatFormat format = formatOf(dtype);
      Placed same(dtype, all, all.size(), 0);
      const void* srcs[] = {same.data()};
      findKernel(dtype, ReduceOp::kSum, isa)->combine(same.data(), srcs, 1, all.size());
      Bits expected = all;
      for (uint64_t& bits : expected) {
        bits = (bits & ~format.signBit()) > format.infinity() ? format.quietNan() : bits;
      }
      CHECK(difference(same, expected) == "");

      // Factors that push every value through the subnormals, the normals and the overflow.
      for (const double factor : {0x1.8p-12, 0x1.554p-1, -0x1.48p0, 0x1.99cp3}) {
        CAPTURE(factor);
        const Bits factors(all.size(), encodeFloat(factor, format));
        Placed dst(dtype, all, all.size(), 0);
        Placed src(dtype, factors, all.size(), 0);
        findKernel(dtype, ReduceOp::kProduct, isa)->accumulate(dst.data(), src.data(), all.size());
        CHECK(difference(dst, expectedOf(dtype, ReduceOp::kProduct, {all, factors})) == "");
      }
    }
  }
}

TEST_CASE("divide truncates integers and rounds floats once") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  forEachKernel([&](DType dtype, ReduceOp, const ReduceKernel& kernel) {
    if (kernel.divide == nullptr) {
      return;
    }
    const Bits a = randomElements(dtype, kMaxSize, random);
    for (const int64_t divisor : {1, 2, 3, 7, 200, 4099}) {
      Bits expected(a.size());
      std::ranges::transform(a, expected.begin(),
                             [&](uint64_t v) { return expectedQuotient(dtype, v, divisor); });
      for (const size_t n : {size_t{0}, size_t{1}, size_t{5}, size_t{67}, kMaxSize}) {
        CAPTURE(divisor);
        CAPTURE(n);
        Placed dst(dtype, a, n, 1);
        kernel.divide(dst.data(), n, divisor);
        CHECK(difference(dst, expected) == "");
      }
    }
  });
}

TEST_CASE("stated values") {
  struct Case {
    DType dtype;
    ReduceOp op;
    uint64_t a, b, expected;
  };
  const Case cases[] = {
      {DType::kInt8, ReduceOp::kSum, 100, 100, 0xc8},  // Wraps to -56.
      {DType::kUInt8, ReduceOp::kMax, 200, 100, 200},  // Unsigned.
      {DType::kInt8, ReduceOp::kMax, 200, 100, 100},   // 200 is -56.
      {DType::kBool, ReduceOp::kSum, 2, 0, 1},         // Any nonzero byte is true,
      {DType::kBool, ReduceOp::kBand, 2, 1, 1},        // also where the bits do not meet,
      {DType::kBool, ReduceOp::kBxor, 2, 1, 0},        // or differ.
      {DType::kFloat32, ReduceOp::kMin, 0x80000000, 0, 0x80000000},           // -0 below +0.
      {DType::kFloat32, ReduceOp::kMax, 0x80000000, 0, 0},                    // +0 above -0.
      {DType::kFloat32, ReduceOp::kMin, 0x3f800000, 0xffc00123, 0x7fc00000},  // NaN wins.
      {DType::kFloat32, ReduceOp::kSum, 0x7f800000, 0xff800000, 0x7fc00000},  // inf - inf.
      {DType::kBFloat16, ReduceOp::kSum, 0x3f80, 0x3b80, 0x3f80},  // 1 + 2^-8: tie, to even.
      {DType::kBFloat16, ReduceOp::kSum, 0x3f81, 0x3b80, 0x3f82},  // The next tie goes up.
      {DType::kBFloat16, ReduceOp::kSum, 0x7f7f, 0x7b00, 0x7f80},  // Rounds up to infinity.
      {DType::kBFloat16, ReduceOp::kSum, 0x7fff, 0x3f80, 0x7fc0},  // NaN stays NaN.
      {DType::kFloat16, ReduceOp::kSum, 0x7bff, 0x4c00, 0x7c00},   // 65504 + 16: infinity,
      {DType::kFloat16, ReduceOp::kSum, 0x7bff, 0x4bff, 0x7bff},   // + just under 16: not.
      {DType::kFloat16, ReduceOp::kSum, 0x0001, 0x03ff, 0x0400},   // Subnormals into a normal.
      {DType::kInt64, ReduceOp::kProduct, 1ULL << 63, 3, 1ULL << 63}};
  for (const Isa isa : supportedIsas()) {
    for (const Case& c : cases) {
      CAPTURE(isaName(isa));
      CAPTURE(dtypeName(c.dtype));
      CAPTURE(reduceOpName(c.op));
      CAPTURE(c.a);
      CHECK(accumulateOne(c.dtype, c.op, isa, c.a, c.b) == c.expected);
    }
  }
}

TEST_CASE("combine rounds 16-bit floats once, over all parts") {
  // 1 + 2^-9 + 2^-9 + 2^-9: each alone is rounded away from a bfloat16 of 1, their sum is not.
  const Bits parts = {0x3f80, 0x3b00, 0x3b00, 0x3b00};
  for (const Isa isa : supportedIsas()) {
    Placed placed(DType::kBFloat16, parts, parts.size(), 0);
    std::vector<const void*> srcs;
    for (size_t i = 0; i < parts.size(); ++i) {
      srcs.push_back(placed.data() + 2 * i);
    }
    Placed dst(DType::kBFloat16, {0}, 1, 0);
    findKernel(DType::kBFloat16, ReduceOp::kSum, isa)->combine(dst.data(), srcs.data(), 4, 1);
    CHECK(dst.elements()[0] == 0x3f81);
  }
}
