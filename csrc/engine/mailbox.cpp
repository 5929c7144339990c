#include "engine/mailbox.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

namespace ringcomm {

namespace {

// Where a message is kept; there are fewer than 2^16 ranks, and than 2^48 messages of one.
uint64_t keyOf(int from, uint64_t id) { return uint64_t{static_cast<uint16_t>(from)} << 48 | id; }

}  // namespace

Mailbox::Mailbox(const Setup& setup)
    : setup_(setup),
      loop_(*setup.loop),
      lanes_(static_cast<size_t>(setup.world)),
      gone_(static_cast<size_t>(setup.world)),
      everybody_(static_cast<size_t>(setup.world)) {
  std::iota(everybody_.begin(), everybody_.end(), 0);
}

void Mailbox::start(const std::shared_ptr<Op>& op) {
  if (!failure_.ok()) {
    op->completeShare(failure_);
    return;
  }
  loop_.retain();
  pending_[op.get()] = {op, loop_.startTimer(op->deadline(), [this, op] { timeOut(op); })};
  const OpDesc& desc = op->desc();
  if (desc.transfer == OpDesc::Transfer::kReceive) {
    startReceive(op);
  } else if (desc.peer == setup_.rank) {
    Letter& letter = addLetter(setup_.rank, {selfSends_++, desc.tag, desc.dtype, desc.count});
    letter.whole = true;
    letter.selfSend = op;
    if (const std::shared_ptr<Op> receiver = receiverOf(letter)) {
      match(letter, receiver);
    }
  } else {
    laneTo(desc.peer, op->deadline()).send(op);
  }
  // Who is gone is not asked for again.
  const auto lost = std::find_if(everybody_.begin(), everybody_.end(), [this](int peer) {
    return !gone_[static_cast<size_t>(peer)].ok() && needed(peer);
  });
  if (lost != everybody_.end()) {
    failWithout(*lost);
  }
}

MailLane& Mailbox::laneTo(int peer, TimePoint deadline) {
  auto& lane = lanes_[static_cast<size_t>(peer)];
  if (lane == nullptr) {
    lane = std::make_unique<MailLane>(loop_, *this, peer, setup_.sliceBytes);
    setup_.host->wantMailFrom(peer, deadline);
  }
  return *lane;
}

void Mailbox::startReceive(const std::shared_ptr<Op>& op) {
  const OpDesc& desc = op->desc();
  const auto letter = desc.peer == kAnyPeer ? unmatched_.take(everybody_, desc.tag)
                                            : unmatched_.take({&desc.peer, 1}, desc.tag);
  if (letter.has_value()) {
    match(**letter, op);
    return;
  }
  receives_.push(desc.peer, desc.tag, op);
  for (int peer = 0; peer < setup_.world; ++peer) {
    if (peer != setup_.rank && (desc.peer == peer || desc.peer == kAnyPeer)) {
      laneTo(peer, op->deadline()).look();
    }
  }
}

Mailbox::Letter& Mailbox::addLetter(int from, const MailHead& head) {
  Letter& letter = letters_[keyOf(from, head.id)];
  letter.from = from;
  letter.head = head;
  return letter;
}

// The receive that takes a new message. If there is none, the message waits for one.
std::shared_ptr<Op> Mailbox::receiverOf(Letter& letter) {
  const int peers[] = {letter.from, kAnyPeer};
  const auto found = receives_.take(peers, letter.head.tag);
  if (!found.has_value()) {
    unmatched_.push(letter.from, letter.head.tag, &letter);
    return nullptr;
  }
  return *found;
}

// Joins a message and the receive that takes it; false if they do not agree, which is the end.
bool Mailbox::match(Letter& letter, const std::shared_ptr<Op>& op) {
  const OpDesc& desc = op->desc();
  const MailHead& head = letter.head;
  if (head.count != desc.count || head.dtype != desc.dtype) {
    setup_.host->fail({Code::kMismatch,
                       setup_.host->peerName(letter.from) + " sends " + std::to_string(head.count) +
                           " x " + dtypeName(head.dtype) + " (tag " + std::to_string(head.tag) +
                           ") to " + setup_.host->peerName(setup_.rank) + ", which receives " +
                           std::to_string(desc.count) + " x " + dtypeName(desc.dtype),
                       letter.from});
    return false;
  }
  letter.receiver = op;
  op->setSource(letter.from);
  if (letter.announced) {
    lanes_[static_cast<size_t>(letter.from)]->request(head, desc.buffers[0].data);
  } else if (letter.whole) {
    deliver(letter);
  }
  return true;
}

std::byte* Mailbox::arriving(MailLane& lane, const MailHead& head, bool announced) noexcept {
  Letter& letter = addLetter(lane.peer(), head);
  letter.announced = announced;
  const std::shared_ptr<Op> receiver = receiverOf(letter);
  if (receiver != nullptr && match(letter, receiver)) {
    return receiver->desc().buffers[0].data;
  }
  if (!announced) {
    letter.bytes = std::make_unique_for_overwrite<std::byte[]>(std::max<uint64_t>(head.bytes(), 1));
  }
  return letter.bytes.get();
}

void Mailbox::arrived(MailLane& lane, uint64_t id) noexcept {
  Letter& letter = letters_.at(keyOf(lane.peer(), id));
  letter.whole = true;
  if (letter.receiver != nullptr) {
    deliver(letter);
  }
}

// All bytes are here and the receiver is known.
void Mailbox::deliver(Letter& letter) {
  const std::shared_ptr<Op> op = letter.receiver;
  const std::shared_ptr<Op> selfSend = letter.selfSend;
  const uint64_t bytes = letter.head.bytes();
  if (selfSend != nullptr || letter.bytes != nullptr) {
    const std::byte* from =
        selfSend != nullptr ? selfSend->desc().buffers[0].data : letter.bytes.get();
    if (bytes > 0) {
      std::memcpy(op->desc().buffers[0].data, from, bytes);
    }
  }
  if (selfSend == nullptr && !letter.announced) {
    lanes_[static_cast<size_t>(letter.from)]->giveCredit(bytes);
  }
  letters_.erase(keyOf(letter.from, letter.head.id));
  complete(op);
  if (selfSend != nullptr) {
    complete(selfSend);
  }
}

void Mailbox::complete(const std::shared_ptr<Op>& op) {
  const auto found = pending_.find(op.get());
  loop_.cancelTimer(found->second.timer);
  pending_.erase(found);
  loop_.release();
  op->completeShare({});
}

void Mailbox::attach(int peer, UniqueFd fd) {
  if (!failure_.ok()) {
    return;
  }
  auto& lane = lanes_[static_cast<size_t>(peer)];
  if (lane == nullptr) {  // the peer was first
    lane = std::make_unique<MailLane>(loop_, *this, peer, setup_.sliceBytes);
  }
  const Status attached = lane->attach(std::move(fd));
  if (!attached.ok()) {
    setup_.host->fail(attached);
  }
}

// A peer may leave when nobody needs it. A receive from anybody needs the last one that is left.
void Mailbox::mailLost(MailLane& lane, int error) noexcept {
  if (needed(lane.peer())) {
    setup_.host->laneLost(lane.peer(), error);
  }
}

void Mailbox::unreachable(int peer, const Status& why) {
  if (!failure_.ok()) {
    return;
  }
  gone_[static_cast<size_t>(peer)] = why;
  if (needed(peer)) {
    failWithout(peer);
  }
}

// The peer is gone, and needed: for itself, or as the last one who could send.
void Mailbox::failWithout(int peer) {
  const bool itself = std::any_of(pending_.begin(), pending_.end(), [peer](const auto& entry) {
    return entry.second.op->desc().peer == peer;
  });
  if (itself || setup_.world == 2) {
    setup_.host->fail(gone_[static_cast<size_t>(peer)]);
    return;
  }
  std::string text = "no rank is left to receive from";
  const char* mark = ": ";
  for (int other = 0; other < setup_.world; ++other) {
    if (other == setup_.rank) {
      continue;
    }
    const Status& why = gone_[static_cast<size_t>(other)];
    text += mark;
    text += why.ok() ? setup_.host->peerName(other) + " has closed its connection" : why.message();
    mark = "; ";
  }
  setup_.host->fail(Status(gone_[static_cast<size_t>(peer)].code(), text, peer));
}

bool Mailbox::nobodyLeft() const {
  return std::all_of(everybody_.begin(), everybody_.end(), [this](int peer) {
    const auto& lane = lanes_[static_cast<size_t>(peer)];
    return peer == setup_.rank || !gone_[static_cast<size_t>(peer)].ok() ||
           (lane != nullptr && lane->ended());
  });
}

bool Mailbox::needed(int peer) const {
  const bool last = nobodyLeft();
  return std::any_of(pending_.begin(), pending_.end(), [&](const auto& entry) {
    const int wanted = entry.second.op->desc().peer;
    return wanted == peer || (last && wanted == kAnyPeer);
  });
}

void Mailbox::mailViolated(MailLane& lane, const Status& why) noexcept {
  setup_.host->fail(why.prefixed(setup_.host->peerName(lane.peer()) + ": "));
}

void Mailbox::timeOut(const std::shared_ptr<Op>& op) {
  const OpDesc& desc = op->desc();
  const bool any = desc.peer == kAnyPeer;
  const std::string who = any ? "no rank" : setup_.host->peerName(desc.peer);
  const MailLane* lane = any ? nullptr : lanes_[static_cast<size_t>(desc.peer)].get();
  const bool apart = lane != nullptr && !lane->connected();
  const char* what = desc.transfer == OpDesc::Transfer::kSend ? " has not received it"
                     : any                                    ? " has sent it"
                                                              : " has not sent it";
  const Status verdict(Code::kTimeout,
                       "Timed out waiting " + std::to_string(toMillis(desc.timeout)) + "ms for " +
                           op->describe() + " on " + setup_.host->peerName(setup_.rank) + ": " +
                           who + (apart ? " is not connected yet" : what),
                       desc.peer);
  if (apart) {
    setup_.host->timedOut(desc.peer, op, verdict);
  } else {
    setup_.host->fail(verdict);
  }
}

void Mailbox::abandon(const Status& cause) {
  if (!failure_.ok()) {
    return;
  }
  failure_ = cause;
  lanes_.clear();
  letters_.clear();
  unmatched_.clear();
  receives_.clear();
  std::vector<Pending> ended;
  std::transform(pending_.begin(), pending_.end(), std::back_inserter(ended),
                 [](const auto& entry) { return entry.second; });
  pending_.clear();
  std::sort(ended.begin(), ended.end(), [](const Pending& a, const Pending& b) {
    return a.timer.second < b.timer.second;  // in the order in which they were called
  });
  for (const Pending& entry : ended) {
    loop_.cancelTimer(entry.timer);
    loop_.release();
    entry.op->completeShare(cause);
  }
}

}  // namespace ringcomm
