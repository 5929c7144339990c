#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace ringcomm {

// One line per way in which something can fail: enumerator, text.
#define RC_STATUS_CODES(X)                \
  X(kOk, "ok")                            \
  X(kInvalidArgument, "invalid argument") \
  X(kTimeout, "timed out")                \
  X(kPeerLost, "peer lost")               \
  X(kMismatch, "mismatched collective")   \
  X(kAborted, "aborted")                  \
  X(kRefused, "refused")                  \
  X(kProtocol, "protocol error")          \
  X(kSystem, "system error")              \
  X(kInternal, "internal error")

enum class Code : uint8_t {
#define RC_ENUM(name, text) name,
  RC_STATUS_CODES(RC_ENUM)
#undef RC_ENUM
};

const char* codeName(Code code) noexcept;

// Why something failed: a code, a sentence for people, and the rank it is about where there is one
// (-1: none). A value type; copying a failed one copies a string, an ok one is free to make.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(Code code, std::string message, int rank = -1)
      : code_(code), rank_(rank), message_(std::move(message)) {}

  // The text of the current errno is appended to `what`.
  static Status fromErrno(const std::string& what, int error);

  bool ok() const noexcept { return code_ == Code::kOk; }
  explicit operator bool() const noexcept { return ok(); }
  Code code() const noexcept { return code_; }
  int rank() const noexcept { return rank_; }
  const std::string& message() const noexcept { return message_; }

  // The same failure with words put before its message: callers add what they were doing.
  Status prefixed(const std::string& words) const;

 private:
  Code code_ = Code::kOk;
  int rank_ = -1;
  std::string message_;
};

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}           // NOLINT(google-explicit-constructor)
  Result(Status failure) : content_(std::move(failure)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const noexcept { return content_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }
  T& value() { return std::get<0>(content_); }
  const T& value() const { return std::get<0>(content_); }
  T* operator->() { return &value(); }
  T& operator*() { return value(); }
  Status status() const { return ok() ? Status() : std::get<1>(content_); }

 private:
  std::variant<T, Status> content_;
};

#define RC_RETURN_IF_ERROR(expression)                                  \
  do {                                                                  \
    if (::ringcomm::Status rcStatus_ = (expression); !rcStatus_.ok()) { \
      return rcStatus_;                                                 \
    }                                                                   \
  } while (false)

}  // namespace ringcomm
