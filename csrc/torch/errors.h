#pragma once

#include "base/clock.h"
#include "base/status.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>

// What the engine's verdicts and limits are in torch's terms.
namespace ringcomm {

// A limit in the engine's unit, which is finer and so ends sooner: centuries become a year.
inline Duration limitOf(std::chrono::milliseconds limit) {
  return std::min(limit, std::chrono::milliseconds(std::chrono::hours(24 * 365)));
}

// The exception that a failure becomes in Python: ValueError for a caller's mistake,
// DistNetworkError for a peer or the network, DistBackendError for the rest. kOk gives nullptr.
inline std::exception_ptr exceptionOf(const Status& status, const std::string& doing) {
  if (status.ok()) {
    return nullptr;
  }
  // A cause that is about this very operation names it already.
  const bool named = doing.empty() || status.message().find(doing) != std::string::npos;
  const std::string text =
      "ringcomm: " + (named ? std::string() : doing + " failed: ") + status.message();
  try {
    switch (status.code()) {
      case Code::kInvalidArgument:
        C10_THROW_ERROR(ValueError, text);
      case Code::kPeerLost:
      case Code::kRefused:
      case Code::kSystem:
      case Code::kProtocol:
        C10_THROW_ERROR(DistNetworkError, text);
      default:
        C10_THROW_ERROR(DistBackendError, text);
    }
  } catch (...) {
    return std::current_exception();
  }
}

// What get_error() says of a group.
inline c10d::ErrorType errorTypeOf(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return c10d::ErrorType::SUCCESS;
    case Code::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case Code::kPeerLost:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

// What the Future of a work's result says.
inline c10d::WorkResult workResultOf(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return c10d::WorkResult::SUCCESS;
    case Code::kTimeout:
      return c10d::WorkResult::TIMEOUT;
    default:
      return c10d::WorkResult::COMM_ERROR;
  }
}

}  // namespace ringcomm
