#pragma once

#include <cfenv>

namespace ringcomm {

// The default floating-point environment for as long as it lives. Whether subnormals are flushed is
// the calling thread's choice (torch.set_flush_denormal); a sum must not depend on whose thread
// computes it, or ranks would differ.
class DefaultFloatMode {
 public:
  DefaultFloatMode() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatMode() { std::fesetenv(&saved_); }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace ringcomm
