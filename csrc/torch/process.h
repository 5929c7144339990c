#pragma once

#include "base/elastic_pool.h"
#include "engine/engine.h"
#include "torch/work.h"

#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>

// What a process has once: the engine, the completers, and where messages go. Only backend.cpp
// calls what is here.
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

// Options by name, as texts.
using Given = std::map<std::string, std::string>;

// The process's options that are given and differ from those that hold: an error.
inline void checkProcessOptions(const Options& holding, const Options& options,
                                const Given& given) {
  const auto check = [&](char scope, const std::string& name, const auto& here, const auto& now) {
    TORCH_CHECK_VALUE(scope != 'P' || here == now || given.count(name) == 0, "ringcomm: option ",
                      name, " is '", here, "', but it is the process's, and its first group has '",
                      now, "'; give it to the first group, or leave all groups before");
  };
#define RC_NUMBER(scope, field, name, preset, least, greatest, doc) \
  check(#scope[0], name, options.field, holding.field);
#define RC_TEXT(scope, field, name, preset, doc) \
  check(#scope[0], name, options.field, holding.field);
  RC_OPTIONS(RC_NUMBER, RC_TEXT)
#undef RC_NUMBER
#undef RC_TEXT
}

// The process's one engine, made for its first group and gone with its last: a process that has
// left all groups has no thread and no port of ours.
inline std::shared_ptr<Engine> sharedEngine(const Options& options, const Given& given,
                                            int localRanks, int rank) {
  // Also where the engine exists and does not ask any more.
  if (const auto isa = selectIsa(options.isa); !isa.ok()) {
    std::rethrow_exception(exceptionOf(isa.status(), "starting"));
  }
  static std::mutex mutex;
  static std::weak_ptr<Engine> current;
  static Options holding;
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Engine> engine = current.lock();
  if (engine == nullptr || engine->forked()) {
    auto made = Engine::create(options, localRanks, stderrLogger(options, rank));
    if (!made.ok()) {
      std::rethrow_exception(exceptionOf(made.status(), "starting"));
    }
    engine = *made;
    current = engine;
    holding = options;
  } else {
    checkProcessOptions(holding, options, given);
  }
  return engine;
}

}  // namespace ringcomm
