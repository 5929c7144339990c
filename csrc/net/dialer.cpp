#include "net/dialer.h"

#include <sys/epoll.h>

#include <algorithm>

#include "net/handshake_driver.h"

namespace ringcomm {

namespace {

// A candidate that does not answer holds the next one up by this long (RFC 8305's figure).
constexpr std::chrono::milliseconds kStagger{250};

// A peer that published its address listens. If every address refuses, its process has ended; we
// look again a few times, since an overflowing backlog can look like that.
constexpr int kRounds = 6;
constexpr std::chrono::milliseconds kFirstBackoff{20};

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
      dialer_.onConnected(this);
    }
    return driver_.advance();
  }

  Dialer& dialer_;
  UniqueFd fd_;
  Address address_;
  DialerHandshake machine_;
  HandshakeDriver<DialerHandshake> driver_;
  bool connected_ = false;
};

Dialer::Dialer(Loop& loop, SocketOptions options, Target target, TimePoint deadline, Done done)
    : loop_(loop),
      options_(std::move(options)),
      target_(std::move(target)),
      deadline_(deadline),
      done_(std::move(done)),
      roundsLeft_(kRounds),
      backoff_(kFirstBackoff) {}

Dialer::~Dialer() { loop_.cancelTimer(timer_); }

void Dialer::start() { startRound(); }

void Dialer::startRound() {
  nextAddress_ = 0;
  failures_.clear();
  --roundsLeft_;
  startNext();
}

void Dialer::setTimer(TimePoint when, Task task) {
  loop_.cancelTimer(timer_);
  timer_ = loop_.startTimer(when, std::move(task));
}

// Tries the next address; with none left and none undecided, the round is over.
void Dialer::startNext() {
  while (nextAddress_ < target_.addresses.size()) {
    const Address& address = target_.addresses[nextAddress_++];
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
    const bool more = nextAddress_ < target_.addresses.size();
    const TimePoint next = more ? std::min(deadline_, Clock::now() + kStagger) : deadline_;
    setTimer(next, [this] {
      if (Clock::now() >= deadline_) {
        finish(Status(Code::kTimeout, "no answer in time"));
      } else {
        startNext();
      }
    });
    return;
  }
  if (!attempts_.empty()) {
    setTimer(deadline_, [this] { finish(Status(Code::kTimeout, "no answer in time")); });
    return;
  }
  const TimePoint retry = Clock::now() + backoff_;
  if (roundsLeft_ == 0 || retry >= deadline_) {
    finish(Status(Code::kPeerLost, failures_));
    return;
  }
  backoff_ *= 2;
  setTimer(retry, [this] { startRound(); });
}

// The others would only make the peer do a second handshake for the same connection.
void Dialer::onConnected(Attempt* attempt) {
  std::erase_if(attempts_, [attempt](const auto& entry) { return entry.get() != attempt; });
  setTimer(std::min(deadline_, Clock::now() + std::chrono::seconds(10)), [this, attempt] {
    onFailed(attempt, {Code::kTimeout, "it does not answer the handshake"});
  });
}

void Dialer::onFinished(Attempt* attempt) { finish(attempt->takeFd()); }

void Dialer::onFailed(Attempt* attempt, const Status& why) {
  noteFailure(attempt->address(), why);
  const Refusal refusal = attempt->refusal();
  remove(attempt);
  if (refusal != Refusal::kNone && refusal != Refusal::kUnknownGroup) {
    finish(Status(why.code(), why.message()));
    return;
  }
  startNext();
}

void Dialer::remove(Attempt* attempt) {
  std::erase_if(attempts_, [attempt](const auto& entry) { return entry.get() == attempt; });
}

void Dialer::noteFailure(const Address& address, const Status& why) {
  failures_ += (failures_.empty() ? "" : "; ") + address.toString() + ": " + why.message();
}

void Dialer::finish(Result<UniqueFd> result) {
  loop_.cancelTimer(timer_);
  attempts_.clear();
  if (!result.ok()) {
    const Status failure = result.status();
    const std::string tried = failure.code() == Code::kTimeout && !failures_.empty()
                                  ? failure.message() + " (" + failures_ + ")"
                                  : failure.message();
    result = Status(
        failure.code(), "cannot connect to " + target_.peerName + ": " + tried,
        target_.hello.toRank);
  }
  Done done = std::move(done_);
  done(std::move(result));
}

}  // namespace ringcomm
