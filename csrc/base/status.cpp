#include "base/status.h"

#include <system_error>

namespace ringcomm {

const char* codeName(Code code) noexcept {
  switch (code) {
#define RC_CASE(name, text) \
  case Code::name:          \
    return text;
    RC_STATUS_CODES(RC_CASE)
#undef RC_CASE
  }
  return "unknown";
}

Status Status::fromErrno(const std::string& what, int error) {
  return {Code::kSystem, what + ": " + std::generic_category().message(error)};
}

Status Status::prefixed(const std::string& words) const {
  return ok() ? Status() : Status(code_, words + message_, rank_);
}

}  // namespace ringcomm
