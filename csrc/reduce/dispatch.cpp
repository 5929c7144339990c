#include "reduce/isa_kernels.h"
#include "reduce/kernels.h"

#include <algorithm>
#include <string>

namespace ringcomm {

namespace {

constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kNeon};

template <typename Isas>
std::string joinedNames(const Isas& isas) {
  std::string text;
  for (const Isa isa : isas) {
    text += text.empty() ? "" : ", ";
    text += isaName(isa);
  }
  return text;
}

}  // namespace

const char* reduceOpName(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kNone:
      return "none";
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kBand:
      return "band";
    case ReduceOp::kBor:
      return "bor";
    case ReduceOp::kBxor:
      return "bxor";
  }
  return "unknown";
}

const char* isaName(Isa isa) noexcept {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kNeon:
      return "neon";
  }
  return "unknown";
}

std::vector<Isa> supportedIsas() {
  std::vector<Isa> isas = {Isa::kScalar};
#if defined(__x86_64__)
  // These also ask the operating system whether it saves the wide registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (avx2) {
    isas.push_back(Isa::kAvx2);
  }
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    isas.push_back(Isa::kAvx512);
  }
#elif defined(__aarch64__)
  isas.push_back(Isa::kNeon);
#endif
  return isas;
}

Result<Isa> selectIsa(std::string_view forced) {
  const std::vector<Isa> supported = supportedIsas();
  if (forced.empty() || forced == "auto") {
    return supported.back();
  }
  const auto isNamed = [forced](Isa isa) { return forced == isaName(isa); };
  if (const auto it = std::ranges::find_if(supported, isNamed); it != supported.end()) {
    return *it;
  }
  const bool known = std::ranges::any_of(kAllIsas, isNamed);
  std::string text = known ? "this machine cannot run" : "unknown";
  text.append(" instruction set \"").append(forced).append("\"; ");
  text += known ? "it has: " + joinedNames(supported) : "allowed: auto, " + joinedNames(kAllIsas);
  return Status(Code::kInvalidArgument, text);
}

const ReduceKernel* findKernel(DType dtype, ReduceOp op, Isa isa) noexcept {
  switch (isa) {
    case Isa::kScalar:
      return scalar::find(dtype, op);
#if defined(__x86_64__)
    case Isa::kAvx2:
      return avx2::find(dtype, op);
    case Isa::kAvx512:
      return avx512::find(dtype, op);
#elif defined(__aarch64__)
    case Isa::kNeon:
      return neon::find(dtype, op);
#endif
    default:
      return nullptr;
  }
}

}  // namespace ringcomm
