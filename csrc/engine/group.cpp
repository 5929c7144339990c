#include "engine/group.h"

#include "base/thread.h"
#include "engine/spec.h"

#include <algorithm>
#include <future>
#include <utility>

namespace ringcomm {

namespace {

// Below this, cutting an operation into shares costs more than the further lanes gain.
constexpr uint64_t kLeastShareBytes = uint64_t{128} << 10;

// Up to this size a waiter moves the operation on itself, sparing two thread switches. Larger ones
// are left to the progress threads: the switches no longer show, and the waiter stays free to
// return when its time has come.
constexpr uint64_t kAssistBytes = uint64_t{1} << 20;

uint64_t totalBytes(const OpDesc& desc) {
  uint64_t total = 0;
  for (const Buffer& buffer : desc.buffers) {
    total += buffer.bytes;
  }
  return total;
}

// Until the loop has run everything that was posted to it before.
void waitFor(Loop& loop) {
  std::promise<void> passed;
  loop.post([&passed] { passed.set_value(); });
  passed.get_future().wait();
}

}  // namespace

Group::Group(Engine& engine, GroupSpec spec)
    : engine_(engine), spec_(std::move(spec)), id_(groupIdOf(spec_.name)) {}

// Everything that a peer's connection needs; with it, the engine may let peers in.
void Group::prepare(const std::string& secret, uint32_t generation) {
  number_ = engine_.numberGroup();
  for (int rank = 0; rank < spec_.world; ++rank) {
    names_.push_back("rank " + std::to_string(rank));
  }
  Peers::Setup peers;
  peers.loop = &controlLoop();
  peers.observer = this;
  peers.logger = &engine_.logger();
  peers.sockets = engine_.sockets();
  peers.group = id_;
  peers.generation = generation;
  peers.rank = spec_.rank;
  peers.world = spec_.world;
  peers.lanes = static_cast<int>(spec_.options.lanes);
  peers.secret = secret;
  peers_ = std::make_unique<Peers>(std::move(peers));
  for (size_t lane = 0; lane < static_cast<size_t>(spec_.options.lanes); ++lane) {
    Share::Setup share;
    share.host = this;
    share.loop = &loopOf(lane);
    share.rank = spec_.rank;
    share.world = spec_.world;
    share.sliceBytes = static_cast<uint32_t>(spec_.options.sliceBytes);
    share.tuning = tuning_;
    share.isa = engine_.isa();
    shares_.push_back(std::make_unique<Share>(share));
  }
  Mailbox::Setup mail;
  mail.host = this;
  mail.loop = &loopOf(0);
  mail.rank = spec_.rank;
  mail.world = spec_.world;
  mail.sliceBytes = static_cast<uint32_t>(spec_.options.sliceBytes);
  mailbox_ = std::make_unique<Mailbox>(mail);
}

// Everybody's addresses are known: from here on this rank can dial.
void Group::introduce(std::vector<Candidates> candidates) {
  const HostId& myHost = candidates[static_cast<size_t>(spec_.rank)].host;
  int localRanks = 0;
  std::vector<std::string> names;
  for (size_t rank = 0; rank < candidates.size(); ++rank) {
    const HostId& host = candidates[rank].host;
    names.push_back("rank " + std::to_string(rank) + " (" + host.name + ")");
    localRanks += host.sameHost(myHost) ? 1 : 0;
  }
  // A spinning waiter must never keep the rank that it waits for off its core.
  spin_ = localRanks <= usableCores() ? std::chrono::microseconds(spec_.options.spinMicros)
                                      : std::chrono::microseconds(0);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    names_ = names;
  }
  controlLoop().post([self = shared_from_this(), candidates = std::move(candidates),
                      names = std::move(names)]() mutable {
    self->peers_->introduce(std::move(candidates), std::move(names));
  });
}

std::string Group::peerName(int peer) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return names_[static_cast<size_t>(peer)];
}

// By what is the same on all ranks: they have to cut alike.
uint64_t Group::partsOf(const OpDesc& desc) const {
  if (shares_.size() == 1 || desc.transfer != OpDesc::Transfer::kNone) {
    return 1;
  }
  // A barrier takes part in every share, since it orders what is in flight in each.
  const CollectiveSpec spec = specOf(desc, desc.buffers, spec_.rank, spec_.world);
  const bool all = desc.kind == Collective::kBarrier ||
                   collectiveBytes(spec) / shares_.size() >= kLeastShareBytes;
  return all ? shares_.size() : 1;
}

bool Group::mayAssist(const OpDesc& desc) const {
  return totalBytes(desc) <= kAssistBytes && partsOf(desc) == 1;
}

std::shared_ptr<Op> Group::submit(OpDesc desc, std::function<void(Op&)> onDone, bool waits) {
  const bool collective = desc.transfer == OpDesc::Transfer::kNone;
  const uint64_t parts = partsOf(desc);
  const bool assisted = waits && mayAssist(desc);
  const auto refuse = [&](uint64_t sequence, const Status& why) {
    auto op = std::make_shared<Op>(std::move(desc), sequence, Clock::now());
    op->onDone(std::move(onDone));
    op->completeShare(why);
    return op;
  };
  if (engine_.forked()) {  // before any lock, which may have been held at the fork
    return refuse(0, {Code::kInvalidArgument,
                      "this process was forked from the one that made the group; only that one can "
                      "use it"});
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_.ok()) {
    const Status failure = failure_;
    const uint64_t sequence = sequence_;
    lock.unlock();
    return refuse(sequence, failure);
  }
  auto op = std::make_shared<Op>(std::move(desc), sequence_, Clock::now());
  if (collective) {
    ++sequence_;
    op->expectShares(static_cast<int>(parts));
    op->onDone(shares_.size() == 1 ? std::move(onDone) : resumingAll(std::move(onDone)));
    orderByMemory(op);
    called_.add(op);
  } else {
    op->onDone(std::move(onDone));
  }
  for (uint64_t part = 0; part < parts; ++part) {
    auto task = [self = shared_from_this(), op, part, parts, collective] {
      if (collective) {
        self->shares_[part]->start(op, part, parts);
      } else {
        self->mailbox_->start(op);
      }
    };
    if (assisted) {
      loopOf(part).postQuietly(std::move(task));
    } else {
      loopOf(part).post(std::move(task));
    }
  }
  return op;
}

// Callers may start an operation on a tensor while an earlier one still works on it; they mean the
// one after the other.
void Group::orderByMemory(const std::shared_ptr<Op>& op) {
  std::erase_if(inFlight_, [](const auto& earlier) { return earlier->done(); });
  for (const auto& earlier : inFlight_) {
    if (op->overlaps(*earlier)) {
      op->startAfter(earlier);
    }
  }
  inFlight_.push_back(op);
}

// With several shares the operation that waits may be on another loop than the one that ends.
std::function<void(Op&)> Group::resumingAll(std::function<void(Op&)> onDone) {
  return [self = shared_from_this(), onDone = std::move(onDone)](Op& op) {
    if (op.awaited()) {
      for (size_t lane = 0; lane < self->shares_.size(); ++lane) {
        self->loopOf(lane).post([self, lane] { self->shares_[lane]->resume(); });
      }
    }
    if (onDone) {
      onDone(op);
    }
  };
}

bool Group::wait(Op& op, TimePoint until) {
  if (!op.done() && mayAssist(op.desc())) {
    loopOf(0).assist([&op] { return op.done(); }, until, spin_);
    if (!op.done() && Clock::now() < until) {
      // Another thread assists; it, or the loop's own thread after it, does our work too.
      loopOf(0).post([] {});
    }
  }
  return op.waitUntil(until);
}

uint64_t Group::sequence() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return sequence_;
}

Status Group::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void Group::fail(const Status& cause) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) {
      return;
    }
    failure_ = cause;
  }
  engine_.logger().info(peerName(spec_.rank) + ": the group failed: " + cause.message());
  endEverywhere(cause, false);
}

void Group::abort(const std::string& why) {
  fail({Code::kAborted, peerName(spec_.rank) + " " + why, spec_.rank});
}

// The peers hear the reason before the ends of connections, since their verdicts rest on that: the
// lanes are closed from the control loop's task, when it has spoken.
void Group::endEverywhere(const Status& cause, bool leaving) {
  controlLoop().post([self = shared_from_this(), cause, leaving] {
    if (leaving) {
      self->peers_->close();
    } else {
      self->peers_->announce(cause);
    }
    for (size_t lane = 0; lane < self->shares_.size(); ++lane) {
      self->loopOf(lane).post([self, cause, lane] { self->shares_[lane]->abandon(cause); });
    }
    self->loopOf(0).post([self, cause] { self->mailbox_->abandon(cause); });
  });
}

void Group::close() {
  if (engine_.forked()) {
    return;  // its locks may have been held at the fork
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) {
      return;
    }
    closed_ = true;
    if (failure_.ok()) {
      failure_ = {Code::kAborted, "the process group was destroyed on this rank", spec_.rank};
    }
  }
  engine_.removeGroup(id_);
  endEverywhere(failure(), true);
  waitFor(controlLoop());  // it has now posted to the loops of the lanes
  for (size_t index = 0; index < engine_.loopCount(); ++index) {
    waitFor(engine_.loop(index));
  }
}

GroupKey Group::admit(const Hello& hello) const { return peers_->admit(hello); }

void Group::accepted(UniqueFd fd, const Hello& hello) { peers_->accepted(std::move(fd), hello); }

void Group::wantPeer(int peer, TimePoint deadline) {
  controlLoop().post(
      [self = shared_from_this(), peer, deadline] { self->peers_->connect(peer, deadline); });
}

void Group::wantMailFrom(int peer, TimePoint deadline) {
  controlLoop().post(
      [self = shared_from_this(), peer, deadline] { self->peers_->connectMail(peer, deadline); });
}

void Group::laneLost(int peer, int error) {
  controlLoop().post(
      [self = shared_from_this(), peer, error] { self->peers_->laneLost(peer, error); });
}

std::shared_ptr<Op> Group::called(uint64_t sequence) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return called_.find(sequence);
}

void Group::compareCalls(int peer, const std::shared_ptr<Op>& op, const Status& verdict) {
  controlLoop().post([self = shared_from_this(), peer, op, verdict] {
    const Viewer viewer{self->spec_.rank, self->spec_.world, &self->tuning_};
    self->peers_->compare(peer, op, noteOf(*op, viewer, peer), verdict);
  });
}

void Group::heardCall(int peer, const ControlMessage& theirs) {
  const std::shared_ptr<Op> op = called(theirs.call.sequence);
  if (op == nullptr) {
    return;  // a rank that is behind asks again
  }
  const Viewer viewer{spec_.rank, spec_.world, &tuning_};
  const Status fit =
      compareNotes(peerName(peer), theirs, peerName(spec_.rank), noteOf(*op, viewer, peer));
  if (!fit.ok()) {
    fail(Status(fit.code(), fit.message(), peer));
  }
}

void Group::timedOut(int peer, const std::shared_ptr<Op>& op, const Status& verdict) {
  controlLoop().post(
      [self = shared_from_this(), peer, op, verdict] { self->peers_->suspect(peer, op, verdict); });
}

// Whether this rank is at that operation, or held up before it by an earlier one: either way it is
// not the one that others wait for.
bool Group::hasCalled(uint64_t sequence) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return sequence_ > sequence || std::any_of(inFlight_.begin(), inFlight_.end(),
                                             [](const auto& op) { return !op->done(); });
}

void Group::peerLeft(int peer) {
  for (size_t lane = 0; lane < shares_.size(); ++lane) {
    loopOf(lane).post(
        [self = shared_from_this(), peer, lane] { self->shares_[lane]->peerLeft(peer); });
  }
}

void Group::mailUnreachable(int peer, const Status& why) {
  loopOf(0).post(
      [self = shared_from_this(), peer, why] { self->mailbox_->unreachable(peer, why); });
}

void Group::laneConnected(int peer, int lane, UniqueFd fd) {
  auto socket = std::make_shared<UniqueFd>(std::move(fd));
  if (lane == peers_->mailLane()) {
    loopOf(0).post([self = shared_from_this(), peer, socket] {
      self->mailbox_->attach(peer, std::move(*socket));
    });
    return;
  }
  loopOf(static_cast<size_t>(lane)).post([self = shared_from_this(), peer, lane, socket] {
    self->shares_[static_cast<size_t>(lane)]->attach(peer, std::move(*socket));
  });
}

}  // namespace ringcomm
