#include "engine/mail_lane.h"

#include <algorithm>
#include <utility>

namespace ringcomm {

namespace {

Status senseless() { return {Code::kProtocol, "a point-to-point frame that makes no sense here"}; }

}  // namespace

MailLane::MailLane(Loop& loop, MailObserver& observer, int peer, uint32_t sliceBytes)
    : loop_(loop), observer_(observer), peer_(peer), sliceBytes_(sliceBytes) {}

MailLane::~MailLane() { loop_.forget(this); }

Status MailLane::attach(UniqueFd fd) {
  auto lane = std::make_unique<TcpLane>(loop_, std::move(fd), *this);
  RC_RETURN_IF_ERROR(lane->watchStatus());
  lane_ = std::move(lane);
  loop_.makeReady(this);
  return {};
}

void MailLane::onLaneReady() noexcept { loop_.makeReady(this); }

void MailLane::queueFrame(MailKind kind, const MailHead& head, uint32_t length,
                          std::shared_ptr<Op> op) {
  Outgoing frame;
  frame.header.collective = static_cast<uint8_t>(kind);
  frame.header.dtype = static_cast<uint8_t>(head.dtype);
  frame.header.sequence = head.id;
  frame.header.count = head.count;
  frame.header.root = head.tag;
  frame.header.length = length;
  frame.op = std::move(op);
  queue_.push_back(std::move(frame));
  loop_.makeReady(this);
}

void MailLane::send(const std::shared_ptr<Op>& op) {
  const OpDesc& desc = op->desc();
  const MailHead head{nextId_++, desc.tag, desc.dtype, desc.count};
  const uint64_t bytes = head.bytes();
  if (bytes <= kEagerBytes && bytes + kMessageCost <= credit_) {
    credit_ -= bytes + kMessageCost;
    queueFrame(MailKind::kEager, head, static_cast<uint32_t>(bytes), op);
    queue_.back().last = true;
  } else {
    announced_.emplace(head.id, op);
    queueFrame(MailKind::kAnnounce, head, 0, nullptr);
  }
}

void MailLane::request(const MailHead& head, std::byte* to) {
  incoming_.emplace(head.id, Incoming{to, head.bytes()});
  queueFrame(MailKind::kRequest, {head.id}, 0, nullptr);
}

// In batches: a peer without credit announces its messages, so nothing waits for it.
void MailLane::giveCredit(uint64_t bytes) {
  owedCredit_ += bytes + kMessageCost;
  if (owedCredit_ >= kCreditBytes / 4) {
    queueFrame(MailKind::kCredit, {0, 0, DType::kByte, owedCredit_}, 0, nullptr);
    lentCredit_ -= owedCredit_;
    owedCredit_ = 0;
  }
}

void MailLane::run() noexcept {
  if (lane_ == nullptr) {
    return;
  }
  const bool sent = pumpSends();
  const bool received = pumpReceives();
  if (sent || received) {
    loop_.makeReady(this);
  }
}

void MailLane::lost(int error) noexcept {
  ended_ = true;
  observer_.mailLost(*this, error);
}

// What to write next: frames that are due, else the next slice of a message that was asked for.
bool MailLane::nextFrame() noexcept {
  if (!queue_.empty()) {
    current_ = std::move(queue_.front());
    queue_.pop_front();
    outBytes_ = current_.op != nullptr ? current_.op->desc().buffers[0].data : nullptr;
  } else if (!flows_.empty()) {
    Flow& flow = flows_.front();
    const Buffer& buffer = flow.op->desc().buffers[0];
    current_ = {};
    current_.header.collective = static_cast<uint8_t>(MailKind::kSlice);
    current_.header.sequence = flow.id;
    current_.header.offset = flow.sent;
    current_.header.length =
        static_cast<uint32_t>(std::min<uint64_t>(sliceBytes_, buffer.bytes - flow.sent));
    current_.op = flow.op;
    outBytes_ = buffer.data + flow.sent;
    flow.sent += current_.header.length;
    current_.last = flow.sent == buffer.bytes;
    if (current_.last) {
      flows_.pop_front();
    } else {
      flows_.splice(flows_.end(), flows_, flows_.begin());
    }
  } else {
    return false;
  }
  encode(current_.header, outHeader_);
  outHeaderDone_ = 0;
  outLeft_ = current_.header.length;
  writing_ = true;
  return true;
}

bool MailLane::pumpSends() noexcept {
  bool movedAny = false;
  for (uint64_t budget = sliceBytes_; budget > 0 && (writing_ || nextFrame());) {
    const size_t headerLeft = kFrameHeaderBytes - outHeaderDone_;
    const iovec pieces[2] = {{outHeader_.data() + outHeaderDone_, headerLeft},
                             {const_cast<std::byte*>(outBytes_), outLeft_}};
    const LaneIo io = lane_->send(pieces, 2);
    if (io.failed()) {
      lost(io.error);
      return false;
    }
    if (io.bytes == 0) {
      break;
    }
    movedAny = true;
    budget -= std::min<uint64_t>(budget, io.bytes);
    const size_t ofHeader = std::min(io.bytes, headerLeft);
    outHeaderDone_ += ofHeader;
    outBytes_ += io.bytes - ofHeader;
    outLeft_ -= static_cast<uint32_t>(io.bytes - ofHeader);
    if (outHeaderDone_ == kFrameHeaderBytes && outLeft_ == 0) {
      writing_ = false;
      const std::shared_ptr<Op> op = std::exchange(current_.op, nullptr);
      if (current_.last) {
        observer_.sent(op);
      }
    }
  }
  return movedAny;
}

bool MailLane::pumpReceives() noexcept {
  bool movedAny = false;
  for (uint64_t budget = sliceBytes_; budget > 0;) {
    const bool header = inHeaderDone_ < kFrameHeaderBytes;
    const iovec piece =
        header ? iovec{inHeader_.data() + inHeaderDone_, kFrameHeaderBytes - inHeaderDone_}
               : iovec{inBytes_, inLeft_};
    const LaneIo io = lane_->receive(&piece, 1);
    if (io.failed()) {
      lost(io.error);
      return false;
    }
    if (io.bytes == 0) {
      break;
    }
    movedAny = true;
    budget -= std::min<uint64_t>(budget, io.bytes);
    if (header) {
      inHeaderDone_ += io.bytes;
      if (inHeaderDone_ < kFrameHeaderBytes) {
        continue;
      }
      const Status begun = beginFrame();
      if (!begun.ok()) {
        lane_.reset();  // nothing that follows can be told apart
        observer_.mailViolated(*this, begun);
        return false;
      }
    } else {
      inBytes_ += io.bytes;
      inLeft_ -= static_cast<uint32_t>(io.bytes);
    }
    if (inLeft_ == 0) {
      endFrame();
    }
  }
  return movedAny;
}

Status MailLane::beginFrame() noexcept {
  Result<FrameHeader> decoded = decodeFrame(inHeader_);
  RC_RETURN_IF_ERROR(decoded.status());
  inFrame_ = *decoded;
  inLeft_ = inFrame_.length;
  switch (static_cast<MailKind>(inFrame_.collective)) {
    case MailKind::kEager:
      return beginMessage(false);
    case MailKind::kAnnounce:
      return beginMessage(true);
    case MailKind::kRequest: {
      const auto found = announced_.find(inFrame_.sequence);
      if (found == announced_.end() || inLeft_ != 0) {
        return senseless();
      }
      flows_.push_back({found->first, found->second});
      announced_.erase(found);
      return {};
    }
    case MailKind::kSlice: {
      const auto found = incoming_.find(inFrame_.sequence);
      const bool whole = inLeft_ == 0 && found != incoming_.end() && found->second.left == 0;
      if (found == incoming_.end() || (inLeft_ == 0 && !whole) || inLeft_ > found->second.left ||
          inFrame_.offset != found->second.offset) {
        return senseless();
      }
      inBytes_ = found->second.to;
      found->second.to += inLeft_;
      found->second.left -= inLeft_;
      found->second.offset += inLeft_;
      return {};
    }
    case MailKind::kCredit:
      if (inLeft_ != 0 || inFrame_.count > kCreditBytes - credit_) {
        return senseless();
      }
      credit_ += inFrame_.count;
      return {};
  }
  return senseless();
}

// Where bytes go follows from what the peer says: whatever it says, they go nowhere else, and no
// more of them are kept than it has credit for.
Status MailLane::beginMessage(bool announced) noexcept {
  const MailHead head{inFrame_.sequence, inFrame_.root, static_cast<DType>(inFrame_.dtype),
                      inFrame_.count};
  const size_t size = dtypeSize(head.dtype);
  if (size == 0 || head.count > UINT64_MAX / size || head.id != nextIncomingId_) {
    return senseless();
  }
  ++nextIncomingId_;
  const uint64_t bytes = head.bytes();
  if (announced) {
    if (inLeft_ != 0) {
      return senseless();
    }
    observer_.arriving(*this, head, true);
    return {};
  }
  if (inLeft_ != bytes || bytes > kEagerBytes ||
      bytes + kMessageCost > kCreditBytes - lentCredit_) {
    return senseless();
  }
  lentCredit_ += bytes + kMessageCost;
  inBytes_ = observer_.arriving(*this, head, false);
  return {};
}

void MailLane::endFrame() noexcept {
  inHeaderDone_ = 0;
  const auto kind = static_cast<MailKind>(inFrame_.collective);
  if (kind == MailKind::kEager) {
    observer_.arrived(*this, inFrame_.sequence);
  } else if (kind == MailKind::kSlice) {
    const auto found = incoming_.find(inFrame_.sequence);
    if (found->second.left == 0) {
      incoming_.erase(found);
      observer_.arrived(*this, inFrame_.sequence);
    }
  }
}

}  // namespace ringcomm
