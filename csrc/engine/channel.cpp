#include "engine/channel.h"

#include <algorithm>
#include <cstring>

namespace ringcomm {

namespace {

// A send that follows a receive waits until this much is there, or the rest of its frame: a system
// call a dribble would cost more than the pipeline gains.
constexpr uint64_t kLeastForward = uint64_t{32} << 10;

// What both ends of a message must agree on.
FrameHeader signatureOf(const Run& run, uint32_t step) {
  FrameHeader signature = run.op().signature();
  if (signature.count == OpDesc::kPerMessage) {
    signature.count = run.step(step).bytes / run.elementSize();
  }
  return signature;
}

}  // namespace

Channel::Channel(Loop& loop, ChannelObserver& observer, int peer, uint32_t sliceBytes)
    : loop_(loop), observer_(observer), peer_(peer), sliceBytes_(sliceBytes) {}

Channel::~Channel() { discard(); }

Status Channel::attach(UniqueFd fd) {
  auto lane = std::make_unique<TcpLane>(loop_, std::move(fd), *this);
  RC_RETURN_IF_ERROR(lane->watchStatus());
  lane_ = std::move(lane);
  nudge();
  return {};
}

void Channel::enqueue(Run& run, uint32_t step) {
  auto& queue = run.step(step).kind == StepKind::kSend ? sends_.queue : receives_.queue;
  const bool sameRun = !queue.empty() && queue.back().run == &run;
  queue.push_back({&run, step, sameRun ? queue.back().message + 1 : 0});
}

void Channel::nudge() noexcept {
  if (lane_ != nullptr && !idle()) {
    loop_.makeReady(this);
  }
}

void Channel::onLaneReady() noexcept {
  nudge();
  if (receives_.queue.empty()) {
    observer_.stirred();
  }
}

// Between messages the stream is at the start of a frame.
std::optional<FrameHeader> Channel::unexpected() noexcept {
  std::array<std::byte, kFrameHeaderBytes> bytes;
  if (lane_ == nullptr || broken_ || !receives_.queue.empty() ||
      lane_->peek(bytes.data(), bytes.size()) < bytes.size()) {
    return {};
  }
  const Result<FrameHeader> header = decodeFrame(bytes);
  if (!header.ok()) {
    broken_ = true;
    observer_.violated(*this, header.status());
    return {};
  }
  return header.value();
}

void Channel::discard() noexcept {
  loop_.forget(this);
  lane_.reset();
  sends_ = {};
  receives_ = {};
  carryBytes_ = 0;
}

// A bounded piece in each direction. What was moved may have made more possible, here or on other
// channels of the run; the observer nudges those.
void Channel::run() noexcept {
  if (lane_ == nullptr || broken_) {
    return;
  }
  const bool sent = pumpSends();
  const bool received = !broken_ && pumpReceives();
  if ((sent || received) && !broken_) {
    nudge();
  }
}

void Channel::fail(int error) noexcept {
  broken_ = true;
  observer_.laneLost(*this, error);
}

// Sends up to about a slice; true if anything moved.
bool Channel::pumpSends() noexcept {
  uint64_t budget = sliceBytes_;
  bool movedAny = false;
  while (budget > 0 && !sends_.queue.empty()) {
    const Transfer transfer = sends_.queue.front();
    Run& run = *transfer.run;
    if (!run.mayStart(transfer.step) || (!sends_.inFrame && !beginSendFrame(transfer))) {
      break;
    }
    const Step& step = run.step(transfer.step);
    const uint64_t sent = run.moved(transfer.step);
    const uint64_t ready =
        std::min<uint64_t>(run.available(transfer.step) - sent, sends_.frameLeft);
    const size_t headerLeft = kFrameHeaderBytes - sends_.headerDone;
    if (headerLeft == 0 && ready < std::min<uint64_t>(sends_.frameLeft, kLeastForward)) {
      break;
    }
    const iovec pieces[2] = {{sends_.header.data() + sends_.headerDone, headerLeft},
                             {run.address(step.src) + sent, ready}};
    const LaneIo io = lane_->send(pieces, 2);
    if (io.failed()) {
      fail(io.error);
      return false;
    }
    if (io.bytes == 0) {
      break;
    }
    movedAny = true;
    const size_t ofHeader = std::min(io.bytes, headerLeft);
    const uint64_t ofPayload = io.bytes - ofHeader;
    sends_.headerDone += ofHeader;
    sends_.frameLeft -= static_cast<uint32_t>(ofPayload);
    run.advance(transfer.step, ofPayload);
    budget -= std::min<uint64_t>(budget, io.bytes);
    if (endFrame(sends_) && run.moved(transfer.step) == step.bytes) {
      sends_.queue.pop_front();
      run.complete(transfer.step);
      observer_.progressed(run);
    }
  }
  return movedAny;
}

// False while there is no byte to put into the frame.
bool Channel::beginSendFrame(const Transfer& transfer) noexcept {
  const Run& run = *transfer.run;
  const Step& step = run.step(transfer.step);
  const uint64_t sent = run.moved(transfer.step);
  const auto length = static_cast<uint32_t>(std::min<uint64_t>(sliceBytes_, step.bytes - sent));
  const uint64_t ready = run.available(transfer.step) - sent;
  if (ready < std::min<uint64_t>(length, kLeastForward)) {
    return false;
  }
  FrameHeader header = signatureOf(run, transfer.step);
  header.message = transfer.message;
  header.offset = sent;
  header.length = length;
  encode(header, sends_.header);
  sends_.headerDone = 0;
  sends_.frameLeft = length;
  sends_.inFrame = true;
  return true;
}

bool Channel::endFrame(Direction& direction) noexcept {
  if (direction.headerDone == kFrameHeaderBytes && direction.frameLeft == 0) {
    direction.inFrame = false;
    return true;
  }
  return false;
}

bool Channel::pumpReceives() noexcept {
  bool movedAny = false;
  for (uint64_t budget = sliceBytes_; budget > 0 && !receives_.queue.empty();) {
    Transfer transfer = receives_.queue.front();
    if (!transfer.run->mayStart(transfer.step)) {
      break;
    }
    const uint64_t before = transfer.run->moved(transfer.step);
    if (!receiveSome(transfer)) {
      break;
    }
    movedAny = true;
    Run& run = *transfer.run;
    budget -= std::min<uint64_t>(budget, run.moved(transfer.step) - before + 1);
    if (endFrame(receives_) && run.moved(transfer.step) == run.step(transfer.step).bytes) {
      receives_.queue.pop_front();
      run.complete(transfer.step);
    }
    observer_.progressed(run);
  }
  return movedAny;
}

// One system call: the rest of the header and, since the plan says what must follow, the payload
// behind it, straight to where it belongs. False if nothing came, or the channel failed.
bool Channel::receiveSome(Transfer& transfer) noexcept {
  Run& run = *transfer.run;
  const Step& step = run.step(transfer.step);
  const uint64_t left = step.bytes - run.moved(transfer.step);
  lane_->expect(left - carryBytes_, step.bytes);  // a broken element's beginning is here already
  if (!receives_.inFrame) {
    receives_.frameLeft = static_cast<uint32_t>(std::min<uint64_t>(sliceBytes_, left));
    receives_.headerDone = 0;
    receives_.inFrame = true;
  }
  const bool reducing = step.kind == StepKind::kRecvReduce;
  const size_t headerLeft = kFrameHeaderBytes - receives_.headerDone;
  std::byte* to =
      reducing ? loop_.scratch() + carryBytes_ : run.address(step.dst) + run.moved(transfer.step);
  const iovec pieces[2] = {{receives_.header.data() + receives_.headerDone, headerLeft},
                           {to, receives_.frameLeft}};
  const LaneIo io = lane_->receive(pieces, 2);
  if (io.failed()) {
    fail(io.error);
    return false;
  }
  if (io.bytes == 0) {
    return false;
  }
  const size_t ofHeader = std::min(io.bytes, headerLeft);
  receives_.headerDone += ofHeader;
  if (ofHeader > 0 && receives_.headerDone == kFrameHeaderBytes && !headerFits(transfer)) {
    return false;
  }
  const uint64_t ofPayload = io.bytes - ofHeader;
  receives_.frameLeft -= static_cast<uint32_t>(ofPayload);
  if (ofPayload == 0) {
    return true;
  }
  if (reducing) {
    takePayload(transfer, ofPayload);
  } else {
    run.advance(transfer.step, ofPayload);
  }
  return true;
}

// Adds what lies in the scratch into place, in whole elements; the broken one is kept for later.
void Channel::takePayload(const Transfer& transfer, uint64_t bytes) noexcept {
  Run& run = *transfer.run;
  std::byte* scratch = loop_.scratch();
  std::memcpy(scratch, carry_.data(), carryBytes_);
  const uint64_t total = carryBytes_ + bytes;
  const uint64_t whole = total - total % run.elementSize();
  run.reduceReceived(transfer.step, scratch, whole);
  carryBytes_ = total - whole;
  std::memcpy(carry_.data(), scratch + whole, carryBytes_);
}

// Whether the frame is the one that comes next. If not, nothing more is moved.
bool Channel::headerFits(const Transfer& transfer) noexcept {
  const Result<FrameHeader> decoded = decodeFrame(receives_.header);
  Run& run = *transfer.run;
  const FrameHeader mine = signatureOf(run, transfer.step);
  FrameHeader expected = mine;
  expected.message = transfer.message;
  expected.offset = run.moved(transfer.step);
  expected.length = receives_.frameLeft;
  if (decoded.ok() && decoded.value() == expected) {
    return true;
  }
  broken_ = true;
  if (!decoded.ok()) {
    observer_.violated(*this, decoded.status());
    return false;
  }
  FrameHeader theirs = decoded.value();
  theirs.message = theirs.length = 0;
  theirs.offset = 0;
  if (theirs == mine) {
    observer_.violated(*this, {Code::kProtocol,
                               "it sent another part of " + describeCall(mine) + " than planned"});
  } else {
    observer_.mismatched(*this, run, theirs, mine);
  }
  return false;
}

}  // namespace ringcomm
