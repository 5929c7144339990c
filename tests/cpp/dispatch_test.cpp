#include "reduce/kernels.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

using namespace ringcomm;

TEST_CASE("dtypes have torch's names and sizes") {
  CHECK(std::string(dtypeName(DType::kBFloat16)) == "bfloat16");
  CHECK(std::string(dtypeName(DType::kFloat8E4M3FNUZ)) == "float8_e4m3fnuz");
  CHECK(dtypeSize(DType::kBFloat16) == 2);
  CHECK(dtypeSize(DType::kComplex128) == 16);
  CHECK(dtypeSize(DType::kByte) == 1);
}

TEST_CASE("kernels exist for exactly the reductions that torch defines") {
  const std::set<DType> floats = {DType::kFloat64, DType::kFloat32, DType::kFloat16,
                                  DType::kBFloat16};
  const std::set<DType> integers = {DType::kInt64, DType::kInt32, DType::kInt16, DType::kInt8,
                                    DType::kUInt8};
  const auto defined = [&](DType dtype, ReduceOp op) {
    if (op == ReduceOp::kNone) {
      return false;
    }
    const bool bitwise = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
    return integers.contains(dtype) || (floats.contains(dtype) && !bitwise) ||
           (dtype == DType::kBool && op != ReduceOp::kAvg);
  };
  for (const Isa isa : supportedIsas()) {
    for (int d = 0; d <= static_cast<int>(DType::kByte); ++d) {
      for (int o = 0; o <= static_cast<int>(ReduceOp::kBxor); ++o) {
        const auto dtype = static_cast<DType>(d);
        const auto op = static_cast<ReduceOp>(o);
        CAPTURE(isaName(isa));
        CAPTURE(dtypeName(dtype));
        CAPTURE(reduceOpName(op));
        const ReduceKernel* kernel = findKernel(dtype, op, isa);
        CHECK((kernel != nullptr) == defined(dtype, op));
        if (kernel != nullptr) {
          CHECK((kernel->accumulate != nullptr));
          CHECK((kernel->combine != nullptr));
          CHECK((kernel->divide != nullptr) == (op == ReduceOp::kAvg));
        }
      }
    }
  }
}

TEST_CASE("an instruction set of another processor family has no kernels") {
  const std::vector<Isa> supported = supportedIsas();
  const bool isArm = std::ranges::find(supported, Isa::kNeon) != supported.end();
  const Isa foreign = isArm ? Isa::kAvx2 : Isa::kNeon;
  CHECK(findKernel(DType::kFloat32, ReduceOp::kSum, foreign) == nullptr);
}

TEST_CASE("selectIsa takes the fastest or the named one, and says what there is") {
  const std::vector<Isa> supported = supportedIsas();
  CHECK(supported.front() == Isa::kScalar);
  CHECK(selectIsa("").value() == supported.back());
  CHECK(selectIsa("auto").value() == supported.back());
  for (const Isa isa : supported) {
    CHECK(selectIsa(isaName(isa)).value() == isa);
  }

  const Result<Isa> unknown = selectIsa("sse9");
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.status().code() == Code::kInvalidArgument);
  CHECK(unknown.status().message() ==
        "unknown instruction set \"sse9\"; allowed: auto, scalar, avx2, avx512, neon");
  CHECK_FALSE(selectIsa("AVX2").ok());

  // No processor has both families, so on every machine some names are known but missing.
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
    if (std::ranges::find(supported, isa) == supported.end()) {
      const Result<Isa> missing = selectIsa(isaName(isa));
      REQUIRE_FALSE(missing.ok());
      CHECK(missing.status().code() == Code::kInvalidArgument);
      const std::string start =
          std::string("this machine cannot run instruction set \"") + isaName(isa) + "\"; ";
      CHECK(missing.status().message().starts_with(start + "it has: scalar"));
    }
  }
  CHECK(supported.size() < 4);
}
