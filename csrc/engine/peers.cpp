#include "engine/peers.h"

#include <cstring>
#include <utility>

namespace ringcomm {

namespace {

// How long the control link may stay silent after a lane of the same peer has ended: both ends come
// from the same process at the same moment, but maybe over different paths.
constexpr std::chrono::milliseconds kVerdictTime{250};

// How long a suspect has to answer, and how long the verdict about a peer that waits for somebody
// else is left to those who know more.
constexpr std::chrono::milliseconds kAnswerTime{400};
constexpr std::chrono::milliseconds kVictimTime{800};

// How long a rank that was asked to dial may take; the one who asked has its own deadline.
constexpr std::chrono::seconds kKnockTime{60};

// How long a rank waits for a lower one to dial before it knocks.
constexpr std::chrono::milliseconds kKnockDelay{250};

}  // namespace

Peers::Peers(Setup setup)
    : setup_(std::move(setup)), loop_(*setup_.loop), peers_(static_cast<size_t>(setup_.world)) {
  for (Peer& peer : peers_) {
    peer.laneSeen.assign(static_cast<size_t>(setup_.lanes) + 1, false);
  }
}

Peers::~Peers() { close(); }

void Peers::introduce(std::vector<Candidates> candidates, std::vector<std::string> names) {
  candidates_ = std::move(candidates);
  names_ = std::move(names);
  for (int peer = 0; peer < setup_.world; ++peer) {
    answerKnocks(peer);
  }
}

std::string Peers::name(int peer) const {
  return names_.empty() ? "rank " + std::to_string(peer) : names_[static_cast<size_t>(peer)];
}

// False when there is nobody to connect with, or no more.
bool Peers::mayConnect(int peer) {
  if (closed_ || failed_) {
    return false;
  }
  if (at(peer).left) {
    failLeft(peer);
    return false;
  }
  return true;
}

void Peers::connect(int peer, TimePoint deadline) {
  if (!mayConnect(peer) || at(peer).wanted) {
    return;
  }
  at(peer).wanted = true;
  warnWhenSlow(peer, deadline);
  if (peer < setup_.rank) {
    knockSoon(peer, deadline);
    return;
  }
  dialControl(peer, deadline);
  for (int lane = 0; lane < setup_.lanes && !failed_; ++lane) {
    dial(peer, ConnectionKind::kData, lane, deadline);
  }
}

// The peer dials as soon as it needs us, too, which is usually now. If not, we look whether it is
// alive, and get the control link that tells when it no longer is.
void Peers::knockSoon(int peer, TimePoint deadline) {
  at(peer).knockTimer = loop_.startTimer(Clock::now() + kKnockDelay, [this, peer, deadline] {
    if (!at(peer).controlSeen && mayConnect(peer)) {
      dial(peer, ConnectionKind::kKnock, 0, deadline);
    }
  });
}

void Peers::connectMail(int peer, TimePoint deadline) {
  if (at(peer).mailWanted || closed_ || failed_) {
    return;
  }
  at(peer).mailWanted = true;
  if (at(peer).left) {
    checkMail(peer);
    return;
  }
  warnWhenSlow(peer, deadline);
  if (peer < setup_.rank) {
    // It may have no message for us and so no reason to dial.
    dial(peer, ConnectionKind::kKnock, mailLane(), deadline);
    return;
  }
  dialControl(peer, deadline);
  dial(peer, ConnectionKind::kData, mailLane(), deadline);
}

void Peers::dialControl(int peer, TimePoint deadline) {
  if (!at(peer).controlDialed) {
    at(peer).controlDialed = true;
    dial(peer, ConnectionKind::kControl, 0, deadline);
  }
}

void Peers::dial(int peer, ConnectionKind kind, int lane, TimePoint deadline) {
  const auto& mine = candidates_[static_cast<size_t>(setup_.rank)];
  const auto& theirs = candidates_[static_cast<size_t>(peer)];
  Dialer::Target target;
  target.addresses = dialOrder(mine, theirs);
  target.secret = setup_.secret;
  target.peerName = name(peer);
  target.hello.group = setup_.group;
  target.hello.generation = setup_.generation;
  target.hello.fromRank = setup_.rank;
  target.hello.toRank = peer;
  target.hello.worldSize = setup_.world;
  target.hello.lane = static_cast<uint16_t>(lane);
  target.hello.kind = kind;
  if (target.addresses.empty()) {
    fail(Code::kPeerLost, "cannot connect to " + name(peer) + ": it offers no usable address",
         peer);
    return;
  }
  auto& dialers = at(peer).dialers;
  dialers.push_back(nullptr);
  const auto place = std::prev(dialers.end());
  auto done = [this, peer, kind, lane, place](Result<UniqueFd> result) {
    at(peer).dialers.erase(place);
    if (result.ok()) {
      established(std::move(*result), peer, kind, lane);
      checkMail(peer);
    } else {
      const bool control = kind == ConnectionKind::kControl;
      dialFailed(peer, result.status(), control ? !at(peer).wanted : lane == mailLane());
    }
  };
  *place = std::make_unique<Dialer>(loop_, setup_.sockets, std::move(target), deadline, done);
  (*place)->start();
}

// Who wants messages may do without this peer. Who wants collectives may not, unless it has left:
// then it may have done its part before all of its lanes were there, and whoever needs more of it
// is told.
void Peers::dialFailed(int peer, const Status& why, bool forMail) {
  const bool left = at(peer).left;
  std::string text = why.message();
  if (left) {
    text = name(peer) + " has left the group (" + text + ")";
  } else if (why.code() == Code::kTimeout) {
    text += ". " + whatToCheck();
  }
  if (forMail) {
    setup_.observer->mailUnreachable(peer, Status(why.code(), text, peer));
  } else if (left) {
    setup_.observer->peerLeft(peer);
  } else {
    setup_.observer->peersFailed(Status(why.code(), text, peer));
  }
}

// Whether the lane for messages is waited for in vain: the peer has left, and nothing is on its
// way.
void Peers::checkMail(int peer) {
  const Peer& state = at(peer);
  if (state.mailWanted && state.left && !state.laneSeen[static_cast<size_t>(mailLane())] &&
      state.dialers.empty() && !failed_ && !closed_) {
    setup_.observer->mailUnreachable(peer, leftStatus(peer));
  }
}

GroupKey Peers::admit(const Hello& hello) const {
  // After a failure the control link is still let in: it brings the peer the cause.
  if (closed_ || (failed_ && hello.kind != ConnectionKind::kControl)) {
    return {Refusal::kClosing, {}};
  }
  if (hello.generation != setup_.generation) {
    return {Refusal::kWrongGeneration, {}};
  }
  if (hello.worldSize != setup_.world) {
    return {Refusal::kWrongWorld, {}};
  }
  const bool knocks = hello.kind == ConnectionKind::kKnock;
  const bool mayDial = knocks ? hello.fromRank > setup_.rank : hello.fromRank < setup_.rank;
  if (hello.toRank != setup_.rank || !mayDial) {
    return {Refusal::kWrongRank, {}};
  }
  const Peer& peer = peers_[static_cast<size_t>(hello.fromRank)];
  const bool control = hello.kind == ConnectionKind::kControl;
  if (!control && hello.lane > mailLane()) {
    return {Refusal::kMalformed, {}};
  }
  if (knocks) {
    return {Refusal::kNone, setup_.secret};
  }
  if (control ? peer.controlSeen : peer.laneSeen[hello.lane]) {
    return {Refusal::kDuplicate, {}};
  }
  return {Refusal::kNone, setup_.secret};
}

void Peers::accepted(UniqueFd fd, const Hello& hello) {
  // Asked again: another connection may have finished its handshake in the meantime.
  if (admit(hello).refusal == Refusal::kNone) {
    established(std::move(fd), hello.fromRank, hello.kind, hello.lane);
  }
}

void Peers::established(UniqueFd fd, int peer, ConnectionKind kind, int lane) {
  if (closed_) {
    return;
  }
  Peer& state = at(peer);
  if (kind == ConnectionKind::kKnock) {
    if (peer > setup_.rank) {
      (lane == mailLane() ? state.mailKnock : state.laneKnock) = true;
      answerKnocks(peer);
    }
    return;  // either way the connection has done its work
  }
  if (kind == ConnectionKind::kData) {
    state.laneSeen[static_cast<size_t>(lane)] = true;
    setup_.observer->laneConnected(peer, lane, std::move(fd));
    return;
  }
  state.controlSeen = true;
  setup_.logger->debug("connected with " + name(peer) + " at " + peerAddress(fd.get()).toString());
  ControlLink::Callbacks callbacks;
  callbacks.message = [this, peer](const ControlMessage& message) { onMessage(peer, message); };
  callbacks.ended = [this, peer](const Status& why) { onControlEnded(peer, why); };
  state.control = std::make_unique<ControlLink>(loop_, std::move(fd), std::move(callbacks));
  const Status started = state.control->start();
  if (!started.ok()) {
    fail(started.code(), started.message(), -1);
  }
  if (failed_) {
    tell(peer, failure_);  // it comes too late for announce()
  }
}

// A knock may come before this rank knows the addresses; introduce() goes on from there.
void Peers::answerKnocks(int peer) {
  if (candidates_.empty()) {
    return;
  }
  if (at(peer).laneKnock) {
    connect(peer, Clock::now() + kKnockTime);
  }
  if (at(peer).mailKnock) {
    connectMail(peer, Clock::now() + kKnockTime);
  }
}

void Peers::onMessage(int peer, const ControlMessage& message) {
  switch (message.kind) {
    case ControlKind::kFailure:
      fail(message.code, message.text, message.rank);
      break;
    case ControlKind::kGoodbye:
      at(peer).left = true;
      if (at(peer).laneEnded) {
        failLeft(peer);
      } else {
        setup_.observer->peerLeft(peer);
        checkMail(peer);
      }
      break;
    case ControlKind::kQuestion: {
      ControlMessage answer;
      answer.kind = ControlKind::kAnswer;
      answer.sequence = message.sequence;
      answer.called = setup_.observer->hasCalled(message.sequence);
      at(peer).control->send(answer);
      break;
    }
    case ControlKind::kAnswer:
      onAnswer(peer, message);
      break;
    case ControlKind::kCall:
      setup_.observer->heardCall(peer, message);
      break;
  }
}

void Peers::suspect(int peer, const std::shared_ptr<Op>& op, const Status& verdict) {
  Peer& state = at(peer);
  if (failed_ || closed_ || state.laneEnded) {
    return;
  }
  if (state.control == nullptr || op->desc().transfer != OpDesc::Transfer::kNone) {
    const bool apart = !isComplete(peer) && !state.left;
    const std::string why = apart ? ": " + whyApart(peer) + ". " + whatToCheck() : "";
    setup_.observer->peersFailed(Status(verdict.code(), verdict.message() + why, peer));
    return;
  }
  ControlMessage question;
  question.kind = ControlKind::kQuestion;
  question.sequence = op->sequence();
  state.suspicion = verdict;
  state.about = op;
  state.control->send(question);
  decideLater(
      peer, kAnswerTime,
      {verdict.code(), verdict.message() + "; it does not answer (stopped, or cut off)", peer});
}

void Peers::compare(int peer, const std::shared_ptr<Op>& op, const ControlMessage& note,
                    const Status& verdict) {
  Peer& state = at(peer);
  if (failed_ || closed_ || state.laneEnded) {
    return;
  }
  if (state.control != nullptr) {
    state.control->send(note);
  }
  if (!verdict.ok()) {
    state.about = op;
    decideLater(peer, kAnswerTime, verdict);
  }
}

void Peers::onAnswer(int peer, const ControlMessage& answer) {
  const Status suspicion = std::exchange(at(peer).suspicion, Status());
  if (suspicion.ok() || failed_ || closed_) {
    return;
  }
  if (answer.called) {
    decideLater(peer, kVictimTime, suspicion);
    return;
  }
  decide(peer,
         {suspicion.code(), suspicion.message() + "; it has not called this operation", peer});
}

// An operation may have been completed while its peer was questioned; then all is well.
void Peers::decide(int peer, const Status& verdict) {
  const std::shared_ptr<Op> op = at(peer).about.lock();
  if (op == nullptr || !op->done()) {
    setup_.observer->peersFailed(verdict);
  }
}

void Peers::decideLater(int peer, Duration delay, const Status& verdict) {
  Peer& state = at(peer);
  loop_.cancelTimer(state.verdictTimer);
  state.verdictTimer =
      loop_.startTimer(Clock::now() + delay, [this, peer, verdict] { decide(peer, verdict); });
}

void Peers::onControlEnded(int peer, const Status& why) {
  if (at(peer).left) {
    return;  // fails whatever still needs it, when that is noticed
  }
  if (why.code() == Code::kProtocol) {
    fail(why.code(), name(peer) + ": " + why.message(), peer);
    return;
  }
  fail(Code::kPeerLost,
       "lost " + name(peer) + ": " + why.message() +
           " (its process ended or was killed, or the network failed)",
       peer);
}

void Peers::laneLost(int peer, int error) {
  Peer& state = at(peer);
  if (failed_ || closed_ || state.laneEnded) {
    return;
  }
  if (state.control != nullptr) {
    state.control->readNow();
  }
  if (failed_) {
    return;
  }
  if (state.left) {
    failLeft(peer);
    return;
  }
  state.laneEnded = true;
  state.about.reset();  // whatever it was suspected of before, this is certain
  state.suspicion = Status();
  const std::string what = error > 0 ? std::strerror(error) : "closed by the peer";
  decideLater(peer, kVerdictTime,
              {Code::kPeerLost, "lost the connection with " + name(peer) + ": " + what, peer});
}

void Peers::fail(Code code, const std::string& text, int peer) {
  setup_.observer->peersFailed(Status(code, text, peer));
}

Status Peers::leftStatus(int peer) const {
  std::string text = name(peer) + " has left the group (its process group was destroyed)";
  for (int other = 0; other < setup_.world; ++other) {
    if (other != peer && peers_[static_cast<size_t>(other)].left) {
      text += ", and so has " + name(other);
    }
  }
  return {Code::kPeerLost, text, peer};
}

void Peers::announce(const Status& cause) {
  if (failed_) {
    return;
  }
  failed_ = true;
  failure_ = cause;
  for (int peer = 0; peer < setup_.world; ++peer) {
    loop_.cancelTimer(at(peer).verdictTimer);
    loop_.cancelTimer(at(peer).knockTimer);
    loop_.cancelTimer(at(peer).slowTimer);
    if (at(peer).control != nullptr) {
      tell(peer, cause);
    }
  }
}

void Peers::tell(int peer, const Status& cause) {
  ControlMessage message;
  message.kind = ControlKind::kFailure;
  message.code = cause.code();
  message.rank = cause.rank();
  message.text = cause.message();
  at(peer).control->send(message);
}

void Peers::close() {
  if (closed_) {
    return;
  }
  closed_ = true;
  ControlMessage goodbye;
  goodbye.kind = ControlKind::kGoodbye;
  for (Peer& peer : peers_) {
    loop_.cancelTimer(peer.verdictTimer);
    loop_.cancelTimer(peer.knockTimer);
    loop_.cancelTimer(peer.slowTimer);
    peer.dialers.clear();
    if (peer.control != nullptr) {
      peer.control->send(goodbye);
      peer.control.reset();
    }
  }
}

}  // namespace ringcomm
