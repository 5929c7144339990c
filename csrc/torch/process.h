#pragma once

#include "base/elastic_pool.h"
#include "engine/engine.h"
#include "torch/errors.h"

#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

// What a process has once: the engine, the completers, and where messages go. For
// backend.cpp and work.cpp.
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

// The process's options that are given and yet do not hold, in a sentence for people; or nothing.
inline std::string lateOptions(const Options& holding, const Options& options, const Given& given) {
  std::ostringstream late;
  const auto compare = [&](char scope, const char* name, const auto& here, const auto& now) {
    if (scope == 'P' && here != now && given.count(name) != 0) {
      late << "option " << name << "='" << here
           << "' has no effect: it is the process's, whose first"
           << " group has made it '" << now << "'. ";
    }
  };
#define RC_NUMBER(scope, field, name, preset, least, greatest, doc) \
  compare(#scope[0], name, options.field, holding.field);
#define RC_TEXT(scope, field, name, preset, doc) \
  compare(#scope[0], name, options.field, holding.field);
  RC_OPTIONS(RC_NUMBER, RC_TEXT)
#undef RC_NUMBER
#undef RC_TEXT
  return late.str();
}

// The process's one engine, made for its first group and gone with its last: a process that has
// left all groups has no thread and no port of ours. `onOther` hears of the options of an engine
// that was there already.
inline std::shared_ptr<Engine> sharedEngine(const Options& options, int localRanks, int rank,
                                            const std::function<void(const Options&)>& onOther) {
  // Bad values are told also where the engine exists and does not ask any more.
  Logger logger = stderrLogger(options, rank);
  if (const auto isa = selectIsa(options.isa); !isa.ok()) {
    std::rethrow_exception(exceptionOf(isa.status(), "starting"));
  }
  static std::mutex mutex;
  static std::weak_ptr<Engine> current;
  static Options holding;
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Engine> engine = current.lock();
  if (engine == nullptr || engine->forked()) {
    auto made = Engine::create(options, localRanks, std::move(logger));
    if (!made.ok()) {
      std::rethrow_exception(exceptionOf(made.status(), "starting"));
    }
    engine = *made;
    current = engine;
    holding = options;
  } else {
    onOther(holding);
  }
  return engine;
}

}  // namespace ringcomm
