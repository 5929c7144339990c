#pragma once

#include <chrono>
#include <cstdint>

namespace ringcomm {

// Everything is timed by the one monotonic clock; wall time never enters a decision.
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

inline double secondsSince(TimePoint start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline int64_t toMillis(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace ringcomm
