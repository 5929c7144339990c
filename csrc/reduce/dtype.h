#pragma once

#include <cstddef>
#include <cstdint>

namespace ringcomm {

// Every element type torch can hand over: enumerator, name (torch's, without "torch."), bytes.
// Collectives that only move bytes take all of them; reduce/kernels.h says which can be reduced.
#define RC_DTYPES(X)                       \
  X(kUInt8, "uint8", 1)                    \
  X(kInt8, "int8", 1)                      \
  X(kInt16, "int16", 2)                    \
  X(kInt32, "int32", 4)                    \
  X(kInt64, "int64", 8)                    \
  X(kFloat16, "float16", 2)                \
  X(kFloat32, "float32", 4)                \
  X(kFloat64, "float64", 8)                \
  X(kBFloat16, "bfloat16", 2)              \
  X(kBool, "bool", 1)                      \
  X(kComplex32, "complex32", 4)            \
  X(kComplex64, "complex64", 8)            \
  X(kComplex128, "complex128", 16)         \
  X(kUInt16, "uint16", 2)                  \
  X(kUInt32, "uint32", 4)                  \
  X(kUInt64, "uint64", 8)                  \
  X(kFloat8E5M2, "float8_e5m2", 1)         \
  X(kFloat8E4M3FN, "float8_e4m3fn", 1)     \
  X(kFloat8E5M2FNUZ, "float8_e5m2fnuz", 1) \
  X(kFloat8E4M3FNUZ, "float8_e4m3fnuz", 1) \
  X(kFloat8E8M0FNU, "float8_e8m0fnu", 1)   \
  X(kByte, "bytes", 1)

enum class DType : uint8_t {
#define RC_ENUM(name, text, size) name,
  RC_DTYPES(RC_ENUM)
#undef RC_ENUM
};

const char* dtypeName(DType dtype) noexcept;
size_t dtypeSize(DType dtype) noexcept;

}  // namespace ringcomm
