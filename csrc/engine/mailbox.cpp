#include "engine/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ringcomm {

namespace {

bool fits(const Op& receive, int from, const MailHead& head) {
  const OpDesc& desc = receive.desc();
  return desc.tag == head.tag && (desc.peer == kAnyPeer || desc.peer == from);
}

}  // namespace

Mailbox::Mailbox(const Setup& setup)
    : setup_(setup), loop_(*setup.loop), lanes_(static_cast<size_t>(setup.world)) {}

void Mailbox::start(const std::shared_ptr<Op>& op) {
  if (!failure_.ok()) {
    op->completeShare(failure_);
    return;
  }
  loop_.retain();
  pending_.push_back({op, loop_.startTimer(op->deadline(), [this, op] { timeOut(op); })});
  const OpDesc& desc = op->desc();
  if (desc.transfer == OpDesc::Transfer::kReceive) {
    startReceive(op);
  } else if (desc.peer == setup_.rank) {
    const auto letter = addLetter(setup_.rank, {0, desc.tag, desc.dtype, desc.count});
    letter->whole = true;
    letter->selfSend = op;
    if (const std::shared_ptr<Op> receiver = takeReceiver(*letter)) {
      match(letter, receiver);
    }
  } else {
    laneTo(desc.peer, op->deadline()).send(op);
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
  const auto letter = std::find_if(letters_.begin(), letters_.end(), [&op](const Letter& entry) {
    return entry.receiver == nullptr && fits(*op, entry.from, entry.head);
  });
  if (letter != letters_.end()) {
    match(letter, op);
    return;
  }
  receives_.push_back(op);
  for (int peer = 0; peer < setup_.world; ++peer) {
    if (peer != setup_.rank && (op->desc().peer == peer || op->desc().peer == kAnyPeer)) {
      laneTo(peer, op->deadline()).look();
    }
  }
}

Mailbox::Letters::iterator Mailbox::addLetter(int from, const MailHead& head) {
  Letter letter;
  letter.from = from;
  letter.head = head;
  return letters_.insert(letters_.end(), std::move(letter));
}

std::shared_ptr<Op> Mailbox::takeReceiver(const Letter& letter) {
  const auto found = std::find_if(receives_.begin(), receives_.end(), [&letter](const auto& op) {
    return fits(*op, letter.from, letter.head);
  });
  if (found == receives_.end()) {
    return nullptr;
  }
  std::shared_ptr<Op> op = std::move(*found);
  receives_.erase(found);
  return op;
}

// Joins a message and the receive that takes it; false if they do not agree, which is the end.
bool Mailbox::match(Letters::iterator letter, const std::shared_ptr<Op>& op) {
  const OpDesc& desc = op->desc();
  const MailHead& head = letter->head;
  if (head.count != desc.count || head.dtype != desc.dtype) {
    setup_.host->fail({Code::kMismatch,
                       setup_.host->peerName(letter->from) + " sends " +
                           std::to_string(head.count) + " x " + dtypeName(head.dtype) + " (tag " +
                           std::to_string(head.tag) + ") to " + setup_.host->peerName(setup_.rank) +
                           ", which receives " + std::to_string(desc.count) + " x " +
                           dtypeName(desc.dtype),
                       letter->from});
    return false;
  }
  letter->receiver = op;
  op->setSource(letter->from);
  if (letter->announced) {
    lanes_[static_cast<size_t>(letter->from)]->request(head, desc.buffers[0].data);
  } else if (letter->whole) {
    deliver(letter);
  }
  return true;
}

std::byte* Mailbox::arriving(MailLane& lane, const MailHead& head, bool announced) noexcept {
  const auto letter = addLetter(lane.peer(), head);
  letter->announced = announced;
  const std::shared_ptr<Op> receiver = takeReceiver(*letter);
  if (receiver != nullptr && match(letter, receiver)) {
    return receiver->desc().buffers[0].data;
  }
  if (!announced) {
    letter->bytes =
        std::make_unique_for_overwrite<std::byte[]>(std::max<uint64_t>(head.bytes(), 1));
  }
  return letter->bytes.get();
}

void Mailbox::arrived(MailLane& lane, uint64_t id) noexcept {
  const auto letter = std::find_if(letters_.begin(), letters_.end(), [&](const Letter& entry) {
    return entry.from == lane.peer() && entry.head.id == id && entry.selfSend == nullptr;
  });
  letter->whole = true;
  if (letter->receiver != nullptr) {
    deliver(letter);
  }
}

// All bytes are here and the receiver is known.
void Mailbox::deliver(Letters::iterator letter) {
  const std::shared_ptr<Op> op = letter->receiver;
  const std::shared_ptr<Op> selfSend = letter->selfSend;
  const uint64_t bytes = letter->head.bytes();
  if (selfSend != nullptr || letter->bytes != nullptr) {
    const std::byte* from =
        selfSend != nullptr ? selfSend->desc().buffers[0].data : letter->bytes.get();
    if (bytes > 0) {
      std::memcpy(op->desc().buffers[0].data, from, bytes);
    }
  }
  if (selfSend == nullptr && !letter->announced) {
    lanes_[static_cast<size_t>(letter->from)]->giveCredit(bytes);
  }
  letters_.erase(letter);
  complete(op);
  if (selfSend != nullptr) {
    complete(selfSend);
  }
}

void Mailbox::complete(const std::shared_ptr<Op>& op) {
  const auto found = std::find_if(pending_.begin(), pending_.end(),
                                  [&op](const Pending& entry) { return entry.op == op; });
  loop_.cancelTimer(found->timer);
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
  const int peer = lane.peer();
  const auto ended = std::count_if(lanes_.begin(), lanes_.end(), [](const auto& each) {
    return each != nullptr && each->ended();
  });
  const bool last = ended == setup_.world - 1;
  const bool needed = std::any_of(pending_.begin(), pending_.end(), [&](const Pending& entry) {
    return entry.op->desc().peer == peer || (last && entry.op->desc().peer == kAnyPeer);
  });
  if (needed) {
    setup_.host->laneLost(peer, error);
  }
}

void Mailbox::mailViolated(MailLane& lane, const Status& why) noexcept {
  setup_.host->fail(why.prefixed(setup_.host->peerName(lane.peer()) + ": "));
}

void Mailbox::timeOut(const std::shared_ptr<Op>& op) {
  const OpDesc& desc = op->desc();
  const bool any = desc.peer == kAnyPeer;
  const std::string who = any ? "no rank" : setup_.host->peerName(desc.peer);
  const char* what = desc.transfer == OpDesc::Transfer::kSend ? " has not received it"
                     : any                                    ? " has sent it"
                                                              : " has not sent it";
  setup_.host->fail({Code::kTimeout,
                     "Timed out waiting " + std::to_string(toMillis(desc.timeout)) + "ms for " +
                         op->describe() + " on " + setup_.host->peerName(setup_.rank) + ": " + who +
                         what,
                     desc.peer});
}

void Mailbox::abandon(const Status& cause) {
  if (!failure_.ok()) {
    return;
  }
  failure_ = cause;
  lanes_.clear();
  letters_.clear();
  receives_.clear();
  const std::list<Pending> ended = std::exchange(pending_, {});
  for (const Pending& entry : ended) {
    loop_.cancelTimer(entry.timer);
    loop_.release();
    entry.op->completeShare(cause);
  }
}

}  // namespace ringcomm
