#include "reduce/dtype.h"

namespace ringcomm {

const char* dtypeName(DType dtype) noexcept {
  switch (dtype) {
#define RC_CASE(name, text, size) \
  case DType::name:               \
    return text;
    RC_DTYPES(RC_CASE)
#undef RC_CASE
  }
  return "unknown";
}

size_t dtypeSize(DType dtype) noexcept {
  switch (dtype) {
#define RC_CASE(name, text, size) \
  case DType::name:               \
    return size;
    RC_DTYPES(RC_CASE)
#undef RC_CASE
  }
  return 0;
}

}  // namespace ringcomm
