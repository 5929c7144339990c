#pragma once

#include "base/elastic_pool.h"
#include "engine/engine.h"
#include "torch/work.h"

#include <iostream>
#include <memory>
#include <mutex>
#include <string>

// What a process has once: the engine, the completers, and where messages go. Included by
// backend.cpp only.
namespace ringcomm {

// Never destroyed: at interpreter exit a callback may still be running in it.
inline ElasticPool& completers() {
  static auto* pool = new ElasticPool;
  return *pool;
}

inline LogLevel logLevelOf(const std::string& name) {
  constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  for (int level = 0; level < 4; ++level) {
    if (name == kNames[level]) {
      return static_cast<LogLevel>(level);
    }
  }
  TORCH_CHECK_VALUE(false, "ringcomm: option log_level is '", name,
                    "'; allowed: debug, info, warning, error");
}

inline Logger stderrLogger(const Options& options, int rank) {
  const std::string prefix = "[ringcomm rank " + std::to_string(rank) + "] ";
  return {logLevelOf(options.logLevel), [prefix](LogLevel, const std::string& text) {
            std::cerr << prefix + text + "\n" << std::flush;
          }};
}

// The process's one engine, made for its first group and gone with its last: a process that has
// left all groups has no thread and no port of ours.
inline std::shared_ptr<Engine> sharedEngine(const Options& options, int localRanks, int rank) {
  // Also where the engine exists and does not ask any more.
  if (const auto isa = selectIsa(options.isa); !isa.ok()) {
    std::rethrow_exception(exceptionOf(isa.status(), "starting"));
  }
  static std::mutex mutex;
  static std::weak_ptr<Engine> current;
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Engine> engine = current.lock();
  if (engine == nullptr || engine->forked()) {
    auto made = Engine::create(options, localRanks, stderrLogger(options, rank));
    if (!made.ok()) {
      std::rethrow_exception(exceptionOf(made.status(), "starting"));
    }
    engine = *made;
    current = engine;
  }
  return engine;
}

}  // namespace ringcomm
