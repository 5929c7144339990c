#include "engine/engine.h"

#include "base/thread.h"
#include "engine/group.h"

#include <algorithm>
#include <future>
#include <utility>

#include <unistd.h>

namespace ringcomm {

namespace {

// One thread moves about 1.5 GB/s of all_reduce; a quarter of the cores is what a training process
// can spare without noticing.
int chooseThreads(int64_t wanted, int localRanks) {
  if (wanted > 0) {
    return static_cast<int>(wanted);
  }
  return std::clamp(usableCores() / (4 * std::max(localRanks, 1)), 1, 8);
}

}  // namespace

Result<std::shared_ptr<Engine>> Engine::create(const Options& options, int localRanks, Logger log) {
  Result<Isa> isa = selectIsa(options.isa);
  RC_RETURN_IF_ERROR(isa.status());
  std::shared_ptr<Engine> engine(new Engine(options, *isa, std::move(log)));
  RC_RETURN_IF_ERROR(engine->startLoops(chooseThreads(options.progressThreads, localRanks)));
  RC_RETURN_IF_ERROR(engine->listen(static_cast<uint16_t>(options.port)));
  return engine;
}

Engine::Engine(const Options& options, Isa isa, Logger log)
    : owner_(::getpid()),
      logger_(std::move(log)),
      sockets_{static_cast<int>(options.socketBufferBytes), options.congestion},
      interfaces_(options.interfaces),
      isa_(isa) {}

Engine::~Engine() {
  if (forked()) {
    // The threads exist in the parent only; joining them, or closing what they use, is not ours.
    for (auto& loop : loops_) {
      [[maybe_unused]] const Loop* parents = loop.release();
    }
    [[maybe_unused]] const Listener* parents = listener_.release();
    return;
  }
  if (listener_ != nullptr) {
    std::promise<void> gone;
    controlLoop().post([this, &gone] {
      listener_.reset();
      gone.set_value();
    });
    gone.get_future().wait();
  }
  for (auto& loop : loops_) {
    loop->stop();
  }
}

bool Engine::forked() const { return ::getpid() != owner_; }

Status Engine::startLoops(int count) {
  for (int i = 0; i < count; ++i) {
    Result<std::unique_ptr<Loop>> loop = Loop::create("ringcomm-" + std::to_string(i));
    RC_RETURN_IF_ERROR(loop.status());
    loops_.push_back(std::move(*loop));
  }
  return {};
}

Status Engine::listen(uint16_t port) {
  Result<UniqueFd> fd = listenOnAll(port, sockets_);
  RC_RETURN_IF_ERROR(fd.status());
  port_ = localAddress(fd->get()).port();
  listener_ = std::make_unique<Listener>(controlLoop(), std::move(*fd), sockets_, logger_);
  auto lookup = [this](const Hello& hello) -> GroupKey {
    const std::shared_ptr<Group> group = findGroup(hello.group);
    return group != nullptr ? group->admit(hello) : GroupKey{Refusal::kUnknownGroup, {}};
  };
  auto admission = [this](const Hello& hello) -> Refusal {
    const std::shared_ptr<Group> group = findGroup(hello.group);
    return group != nullptr ? group->admit(hello).refusal : Refusal::kUnknownGroup;
  };
  auto accepted = [this](UniqueFd connection, const Hello& hello) {
    if (const std::shared_ptr<Group> group = findGroup(hello.group)) {
      group->accepted(std::move(connection), hello);
    }
  };
  std::promise<Status> started;
  controlLoop().post([&] { started.set_value(listener_->start(lookup, admission, accepted)); });
  return started.get_future().get();
}

Result<Candidates> Engine::candidates(const std::string& routeTo) const {
  CandidateOptions options;
  options.port = port_;
  options.interfaces = interfaces_;
  options.routeTo = routeTo;
  return localCandidates(options);
}

size_t Engine::numberGroup() {
  std::lock_guard<std::mutex> lock(mutex_);
  return groupsMade_++;
}

void Engine::addGroup(const GroupId& id, const std::shared_ptr<Group>& group) {
  std::lock_guard<std::mutex> lock(mutex_);
  groups_[id] = group;
}

void Engine::removeGroup(const GroupId& id) {
  std::lock_guard<std::mutex> lock(mutex_);
  groups_.erase(id);
}

std::shared_ptr<Group> Engine::findGroup(const GroupId& id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.lock();
}

}  // namespace ringcomm
