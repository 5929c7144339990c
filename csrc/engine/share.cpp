#include "engine/share.h"

#include "engine/called.h"
#include "engine/spec.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace ringcomm {

namespace {

// Local copies and reductions are done in pieces of this size, so that the lanes are served
// between.
constexpr uint64_t kLocalPiece = uint64_t{4} << 20;

// How often a share looks around: what moves not at all for this long may never do.
constexpr std::chrono::milliseconds kLookTime{200};

// Part `index` of `parts` of a buffer, in whole elements.
Buffer partOf(const Buffer& buffer, size_t elementSize, uint64_t index, uint64_t parts) {
  const uint64_t elements = buffer.bytes / elementSize;
  // Divided before it is multiplied: elements * index could pass 2^64.
  const uint64_t first = elements / parts * index + elements % parts * index / parts;
  const uint64_t next = elements / parts * (index + 1) + elements % parts * (index + 1) / parts;
  return {buffer.data + first * elementSize, (next - first) * elementSize};
}

}  // namespace

Share::Share(const Setup& setup)
    : setup_(setup), loop_(*setup.loop), channels_(static_cast<size_t>(setup.world)) {}

Run::Setup Share::makeRun(const std::shared_ptr<Op>& op, uint64_t index, uint64_t parts) const {
  const OpDesc& desc = op->desc();
  Run::Setup made;
  made.op = op;
  made.elementSize = dtypeSize(desc.dtype);
  made.world = setup_.world;
  made.kernel = desc.reduceOp == ReduceOp::kNone
                    ? nullptr
                    : findKernel(desc.dtype, desc.reduceOp, setup_.isa);
  for (const Buffer& buffer : desc.buffers) {
    made.buffers.push_back(partOf(buffer, made.elementSize, index, parts));
  }
  // Chosen by the whole operation's size, so that all shares do the same.
  const Algorithm& algorithm =
      chooseAlgorithm(specOf(desc, desc.buffers, setup_.rank, setup_.world), setup_.tuning);
  made.plan = makePlan(algorithm, specOf(desc, made.buffers, setup_.rank, setup_.world));
  return made;
}

void Share::start(const std::shared_ptr<Op>& op, uint64_t index, uint64_t parts) {
  if (!failure_.ok()) {
    op->completeShare(failure_);
    return;
  }
  loop_.retain();
  nextSequence_ = op->sequence() + 1;
  stirred();
  runs_.push_back(std::make_unique<Run>(makeRun(op, index, parts)));
  Run& run = *runs_.back();
  enqueue(run);
  settle(run);
}

void Share::enqueue(Run& run) {
  const auto& steps = run.plan().steps;
  bool needsPeers = false;
  for (uint32_t i = 0; i < steps.size(); ++i) {
    const StepKind kind = steps[i].kind;
    if (kind == StepKind::kCopy || kind == StepKind::kReduce) {
      continue;
    }
    needsPeers = true;
    auto& channel = channels_[static_cast<size_t>(steps[i].peer)];
    if (channel == nullptr) {
      channel = std::make_unique<Channel>(loop_, *this, steps[i].peer, setup_.sliceBytes);
      setup_.host->wantPeer(steps[i].peer, run.op().deadline());
    }
    channel->enqueue(run, i);
  }
  if (needsPeers) {
    run.timer = loop_.startTimer(run.op().deadline(), [this, &run] { timeOut(run); });
  }
}

void Share::attach(int peer, UniqueFd fd) {
  if (!failure_.ok()) {
    return;
  }
  auto& channel = channels_[static_cast<size_t>(peer)];
  if (channel == nullptr) {  // the peer was first
    channel = std::make_unique<Channel>(loop_, *this, peer, setup_.sliceBytes);
  }
  const Status attached = channel->attach(std::move(fd));
  if (!attached.ok()) {
    setup_.host->fail(attached);
  }
}

void Share::peerLeft(int peer) {
  const Channel* channel = failure_.ok() ? channels_[static_cast<size_t>(peer)].get() : nullptr;
  if (channel != nullptr && !channel->idle() && !channel->connected()) {
    setup_.host->laneLost(peer, kLaneEnded);
  }
}

void Share::progressed(Run& run) noexcept { settle(run); }

// After anything moved: do what can be done locally, wake the channels that may go on, and end the
// run when that was all.
void Share::settle(Run& run) {
  if (run.workLocally(kLocalPiece)) {
    loop_.makeReady(this);
  }
  if (run.done() && mayFinish(run)) {
    finish(run);
    return;
  }
  nudgeChannels();
}

// A barrier orders: it is over when everything before it is.
bool Share::mayFinish(const Run& run) const {
  return run.op().desc().kind != Collective::kBarrier || runs_.front().get() == &run;
}

void Share::nudgeChannels() noexcept {
  for (auto& channel : channels_) {
    if (channel != nullptr) {
      channel->nudge();
    }
  }
}

void Share::resume() {
  if (!failure_.ok()) {
    return;
  }
  loop_.makeReady(this);
  nudgeChannels();
}

void Share::run() noexcept {
  // By value: settling may end the run and shift those behind it.
  std::vector<Run*> current;
  current.reserve(runs_.size());
  for (auto& run : runs_) {
    current.push_back(run.get());
  }
  for (Run* run : current) {
    settle(*run);
  }
}

void Share::finish(Run& run) {
  loop_.cancelTimer(run.timer);
  const std::shared_ptr<Op> op = run.sharedOp();
  std::erase_if(runs_, [&run](const auto& entry) { return entry.get() == &run; });
  loop_.release();
  op->completeShare({});
  if (!runs_.empty()) {
    resume();  // a barrier, or an operation on the same memory, may have waited for this one
  }
}

void Share::laneLost(Channel& channel, int error) noexcept {
  setup_.host->laneLost(channel.peer(), error);
}

void Share::violated(Channel& channel, const Status& why) noexcept {
  const std::string who = setup_.host->peerName(channel.peer());
  setup_.host->fail(Status(why.code(), who + ": " + why.message(), channel.peer()));
}

// A frame of another call than the one that this rank waits for. If the peer has gone past that
// call, only the peer knows what it called instead.
void Share::mismatched(Channel& channel, Run& run, const FrameHeader& theirs,
                       const FrameHeader& mine) noexcept {
  const int peer = channel.peer();
  if (theirs.sequence < mine.sequence) {
    unexpected(channel, theirs);
    return;
  }
  const Status verdict(
      Code::kMismatch,
      differentCalls(setup_.host->peerName(peer), theirs, setup_.host->peerName(setup_.rank), mine),
      peer);
  if (theirs.sequence == mine.sequence) {
    setup_.host->fail(verdict);
  } else {
    setup_.host->compareCalls(peer, run.sharedOp(), verdict);
  }
}

// A frame of an operation that takes nothing, or nothing more, from the peer.
void Share::unexpected(Channel& channel, const FrameHeader& theirs) {
  const int peer = channel.peer();
  const std::shared_ptr<Op> op = setup_.host->called(theirs.sequence);
  FrameHeader frame = theirs;
  frame.message = frame.length = 0;
  frame.offset = 0;
  if (op == nullptr) {
    violated(channel, {Code::kProtocol,
                       "it sent a part of " + describeCall(frame) + ", which is long over"});
    return;
  }
  const Viewer viewer{setup_.rank, setup_.world, &setup_.tuning};
  FrameHeader mine = op->signature();
  if (mine.count == OpDesc::kPerMessage) {
    mine.count = noteOf(*op, viewer, peer).takes / dtypeSize(op->desc().dtype);
  }
  if (frame == mine) {
    violated(channel,
             {Code::kProtocol, "it sent more of " + describeCall(frame) + " than planned"});
    return;
  }
  setup_.host->fail(
      {Code::kMismatch,
       differentCalls(setup_.host->peerName(peer), frame, setup_.host->peerName(setup_.rank), mine),
       peer});
}

void Share::stirred() noexcept {
  stirred_ = true;
  if (!looking_) {
    looking_ = true;
    lookTimer_ = loop_.startTimer(Clock::now() + kLookTime, [this] { lookAround(); });
  }
}

// Ranks that call different things may wait for each other, or send what nobody takes: neither
// shows in a header that is compared. Looking now and then costs the operations nothing.
void Share::lookAround() {
  looking_ = false;
  const bool goesOn = std::exchange(stirred_, false) || !runs_.empty();
  for (auto& channel : channels_) {
    const auto header = channel != nullptr ? channel->unexpected() : std::nullopt;
    if (header.has_value() && header->sequence < nextSequence_) {
      unexpected(*channel, *header);
      return;
    }
  }
  askAboutStuck();
  if (goesOn && failure_.ok()) {
    stirred();
    stirred_ = false;
  }
}

// If the oldest run has not moved since the last look: whether those that it waits for have called
// the same.
void Share::askAboutStuck() {
  if (runs_.empty()) {
    return;
  }
  Run& run = *runs_.front();
  const uint64_t progress = run.progress();
  const bool stuck = run.op().sequence() == seenSequence_ && progress == seenProgress_;
  seenSequence_ = run.op().sequence();
  seenProgress_ = progress;
  std::vector<bool> asked(static_cast<size_t>(setup_.world), !stuck);
  const auto& steps = run.plan().steps;
  for (uint32_t i = run.firstOpenStep(); stuck && i < steps.size(); ++i) {
    if (run.waitsForPeer(i) && !asked[static_cast<size_t>(steps[i].peer)]) {
      asked[static_cast<size_t>(steps[i].peer)] = true;
      setup_.host->compareCalls(steps[i].peer, run.sharedOp(), {});
    }
  }
}

void Share::timeOut(Run& run) {
  const Op& op = run.op();
  std::string how;
  const int peer = whomItWaitsFor(run, how);
  const Status verdict(Code::kTimeout,
                       "Timed out waiting " + std::to_string(toMillis(op.desc().timeout)) +
                           "ms for " + op.describe() + " on " + setup_.host->peerName(setup_.rank) +
                           ": " + how,
                       peer);
  if (peer < 0) {
    setup_.host->fail(verdict);
  } else {
    setup_.host->timedOut(peer, run.sharedOp(), verdict);
  }
}

// The peer of the first receive, else send, that is not complete although it may run; -1 if none.
int Share::whomItWaitsFor(Run& run, std::string& how) const {
  const auto& steps = run.plan().steps;
  const Step* waited = nullptr;
  uint64_t moved = 0;
  for (uint32_t i = run.firstOpenStep(); i < steps.size(); ++i) {
    if (!run.waitsForPeer(i)) {
      continue;
    }
    const bool receives = steps[i].kind != StepKind::kSend;
    if (waited == nullptr || receives) {
      waited = &steps[i];
      moved = run.moved(i);
    }
    if (receives) {
      break;
    }
  }
  if (waited == nullptr) {
    how = "it waits for operations before it";
    return -1;
  }
  const std::string peer = setup_.host->peerName(waited->peer);
  const std::string amount =
      " (" + std::to_string(moved) + " of " + std::to_string(waited->bytes) + " bytes so far)";
  if (!channels_[static_cast<size_t>(waited->peer)]->connected()) {
    how = "there is no connection with " + peer + " yet";
  } else if (waited->kind == StepKind::kSend) {
    how = peer + " does not take what is sent to it" + amount;
  } else {
    how = "waiting for data from " + peer + amount;
  }
  return waited->peer;
}

void Share::abandon(const Status& cause) {
  if (!failure_.ok()) {
    return;
  }
  failure_ = cause;
  loop_.forget(this);
  loop_.cancelTimer(lookTimer_);
  channels_.clear();
  std::vector<std::unique_ptr<Run>> ended = std::move(runs_);
  runs_.clear();
  for (auto& run : ended) {
    loop_.cancelTimer(run->timer);
    loop_.release();
    const std::shared_ptr<Op> op = run->sharedOp();
    run.reset();
    op->completeShare(cause);
  }
}

}  // namespace ringcomm
