#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace ringcomm {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

// Where the core's few messages for people go. The core writes nowhere itself: whoever makes the
// engine gives it a sink, which any thread may call and which must not block for long.
class Logger {
 public:
  using Sink = std::function<void(LogLevel, const std::string&)>;

  Logger() = default;
  Logger(LogLevel threshold, Sink sink) : threshold_(threshold), sink_(std::move(sink)) {}

  void log(LogLevel level, const std::string& text) const {
    if (sink_ && level >= threshold_) {
      sink_(level, text);
    }
  }
  void debug(const std::string& text) const { log(LogLevel::kDebug, text); }
  void info(const std::string& text) const { log(LogLevel::kInfo, text); }
  void warning(const std::string& text) const { log(LogLevel::kWarning, text); }

 private:
  LogLevel threshold_ = LogLevel::kWarning;
  Sink sink_;
};

}  // namespace ringcomm
