#include "net/dialer.h"

#include "net/handshake_driver.h"

#include <algorithm>

#include <sys/epoll.h>

namespace ringcomm {

namespace {

// A candidate that does not answer holds the next one up by this long (RFC 8305's figure).
constexpr std::chrono::milliseconds kStagger{250};

// One that took the connection is probably the peer, and probably busy: it gets longer before the
// next address is tried beside it (should both lead to the peer, it admits only one), and so long
// before it is given up.
constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::seconds kHandshakeTime{10};

constexpr char kNoHandshake[] = "it takes the connection, but does not answer the handshake";

// A peer that published its address listens. If every address refuses, its process has ended; we
// look again a few times, since an overflowing backlog can look like that.
constexpr int kRounds = 6;
constexpr std::chrono::milliseconds kFirstBackoff{20};

// Refusals that the peer itself gives for good. The others come from somebody else at its address,
// from a peer that is not ready yet, or from one that is about to leave.
bool isFinal(Refusal refusal, const Status& why) {
  switch (refusal) {
    case Refusal::kNone:  // refused on this side, for want of a proof
      return why.code() == Code::kRefused;
    case Refusal::kVersion:
    case Refusal::kWrongSecret:
    case Refusal::kDuplicate:
    case Refusal::kClosing:
      return true;
    case Refusal::kMalformed:
    case Refusal::kUnknownGroup:
    case Refusal::kWrongGeneration:
    case Refusal::kWrongWorld:
    case Refusal::kWrongRank:
      return false;
  }
  return false;
}

}  // namespace

// One address being tried: the connect, then the handshake.
class Dialer::Attempt final : private EventHandler {
 public:
  Attempt(Dialer& dialer, UniqueFd fd, const Address& address)
      : dialer_(dialer),
        fd_(std::move(fd)),
        address_(address),
        machine_(dialer.target_.hello, dialer.target_.secret),
        driver_(fd_.get(), machine_) {}
  ~Attempt() {
    dialer_.loop_.cancelTimer(timer_);
    if (fd_) {
      dialer_.loop_.unwatch(fd_.get(), this);
    }
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  Status watch() { return dialer_.loop_.watch(fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP, this); }
  UniqueFd takeFd() {
    dialer_.loop_.unwatch(fd_.get(), this);
    return std::move(fd_);
  }
  const Address& address() const { return address_; }
  Refusal refusal() const { return machine_.refusal(); }
  const char* progress() const { return connected_ ? kNoHandshake : "no answer"; }

 private:
  void onEvents(uint32_t events) noexcept override {
    const Status status = advance(events);
    if (!status.ok()) {
      dialer_.onFailed(this, status);
    } else if (connected_ && driver_.finished()) {
      dialer_.onFinished(this);
    }
  }

  Status advance(uint32_t events) {
    if (!connected_) {
      if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) {
        return {};
      }
      if (const int error = connectError(fd_.get())) {
        return Status::fromErrno("connect", error);
      }
      RC_RETURN_IF_ERROR(prepareConnection(fd_.get(), dialer_.options_));
      RC_RETURN_IF_ERROR(machine_.start());
      connected_ = true;
      timer_ = dialer_.loop_.startTimer(Clock::now() + kHandshakeTime, [this] {
        dialer_.onFailed(this, {Code::kTimeout, kNoHandshake});
      });
      dialer_.onConnected();
    }
    return driver_.advance();
  }

  Dialer& dialer_;
  UniqueFd fd_;
  Address address_;
  DialerHandshake machine_;
  HandshakeDriver<DialerHandshake> driver_;
  bool connected_ = false;
  Loop::TimerId timer_{};
};

Dialer::Dialer(Loop& loop, SocketOptions options, Target target, TimePoint deadline, Done done)
    : loop_(loop),
      options_(std::move(options)),
      target_(std::move(target)),
      deadline_(deadline),
      done_(std::move(done)),
      roundsLeft_(kRounds),
      backoff_(kFirstBackoff),
      outcomes_(target_.addresses.size(), "not tried yet") {}

Dialer::~Dialer() { loop_.cancelTimer(timer_); }

void Dialer::startRound() {
  nextAddress_ = 0;
  roundFailed_ = false;
  code_ = Code::kPeerLost;
  refusedForGood_ = false;
  --roundsLeft_;
  startNext();
}

void Dialer::setTimer(TimePoint when, Task task) {
  loop_.cancelTimer(timer_);
  timer_ = loop_.startTimer(std::min(when, deadline_), [this, task = std::move(task)] {
    if (Clock::now() >= deadline_) {
      finish(Status(Code::kTimeout, "no answer in time (" + report() + ")"));
    } else {
      task();
    }
  });
}

const Dialer::Attempt* Dialer::attemptAt(const Address& address) const {
  const auto found =
      std::find_if(attempts_.begin(), attempts_.end(),
                   [&address](const auto& attempt) { return attempt->address() == address; });
  return found == attempts_.end() ? nullptr : found->get();
}

std::string Dialer::report() const {
  std::string text;
  for (size_t i = 0; i < outcomes_.size(); ++i) {
    const Address& address = target_.addresses[i];
    const Attempt* attempt = attemptAt(address);
    text += (text.empty() ? "" : "; ") + address.toString() + ": " +
            (attempt != nullptr ? attempt->progress() : outcomes_[i]);
  }
  return text;
}

// Tries the next address, or ends the round when there is none.
void Dialer::startNext() {
  while (nextAddress_ < target_.addresses.size()) {
    const Address& address = target_.addresses[nextAddress_++];
    if (attemptAt(address) != nullptr) {  // since an earlier round
      continue;
    }
    Result<UniqueFd> fd = startConnect(address, options_);
    if (!fd.ok()) {
      noteFailure(address, fd.status());
      continue;
    }
    attempts_.push_back(std::make_unique<Attempt>(*this, std::move(*fd), address));
    const Status watched = attempts_.back()->watch();
    if (!watched.ok()) {
      noteFailure(address, watched);
      attempts_.pop_back();
      continue;
    }
    setTimer(Clock::now() + kStagger, [this] { startNext(); });
    return;
  }
  endRound();
}

// Every address has failed or is still undecided.
void Dialer::endRound() {
  const TimePoint retry = Clock::now() + backoff_;
  const bool mayRetry = roundsLeft_ > 0 && !refusedForGood_;
  if (attempts_.empty() && (!mayRetry || retry >= deadline_)) {
    finish(Status(code_, report()));
  } else if (mayRetry && roundFailed_) {
    backoff_ *= 2;
    setTimer(retry, [this] { startRound(); });
  } else {
    setTimer(deadline_, [] {});
  }
}

void Dialer::onConnected() {
  if (nextAddress_ < target_.addresses.size()) {
    setTimer(Clock::now() + kPatience, [this] { startNext(); });
  }
}

void Dialer::onFinished(Attempt* attempt) { finish(attempt->takeFd()); }

void Dialer::onFailed(Attempt* attempt, const Status& why) {
  noteFailure(attempt->address(), why);
  noteRefusal(attempt->refusal(), why);
  remove(attempt);
  startNext();
}

void Dialer::noteRefusal(Refusal refusal, const Status& why) {
  if (refusal == Refusal::kUnknownGroup) {
    return;  // the peer offered its address when it had the group: it has left
  }
  if (refusal != Refusal::kNone || why.code() == Code::kRefused) {
    code_ = why.code();
  }
  refusedForGood_ = refusedForGood_ || isFinal(refusal, why);
}

void Dialer::remove(Attempt* attempt) {
  std::erase_if(attempts_, [attempt](const auto& entry) { return entry.get() == attempt; });
}

void Dialer::noteFailure(const Address& address, const Status& why) {
  roundFailed_ = true;
  for (size_t i = 0; i < outcomes_.size(); ++i) {
    if (target_.addresses[i] == address) {
      outcomes_[i] = why.message();
    }
  }
}

void Dialer::finish(Result<UniqueFd> result) {
  loop_.cancelTimer(timer_);
  attempts_.clear();
  if (!result.ok()) {
    const Status failure = result.status();
    result =
        Status(failure.code(), "cannot connect to " + target_.peerName + ": " + failure.message(),
               target_.hello.toRank);
  }
  Done done = std::move(done_);
  done(std::move(result));
}

}  // namespace ringcomm
