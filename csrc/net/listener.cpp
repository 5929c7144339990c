#include "net/listener.h"

#include "net/handshake_driver.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include <sys/epoll.h>
#include <sys/socket.h>

namespace ringcomm {

namespace {

// When descriptors run out, accept() fails until some are freed; edges do not repeat, so we look
// again after this time.
constexpr std::chrono::milliseconds kAcceptRetry{100};

// Connections accepted in a row. A flood must not push out those that are in their handshake before
// what they have sent is looked at.
constexpr int kAcceptBatch = 32;

// After a refusal we read on for this long and this much: closing with bytes unread makes the
// kernel send a reset, which may overtake the refusal.
constexpr std::chrono::seconds kLingerTime{1};
constexpr size_t kLingerBytes = 4096;

constexpr std::chrono::seconds kReportWindow{10};
constexpr int kReportsPerWindow = 5;

}  // namespace

// One connection in its handshake, or just after it was refused.
class Listener::Pending final : private EventHandler {
 public:
  Pending(Listener& listener, UniqueFd fd)
      : listener_(listener),
        fd_(std::move(fd)),
        machine_(listener.lookup_, listener.admission_),
        driver_(fd_.get(), machine_),
        timer_(listener.loop_.startTimer(Clock::now() + kHandshakeTime, [this] {
          listener_.drop(this, {Code::kTimeout, "its handshake did not end in time"});
        })) {}
  ~Pending() {
    listener_.loop_.cancelTimer(timer_);
    if (fd_) {
      listener_.loop_.unwatch(fd_.get(), this);
    }
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  Status watch() { return listener_.loop_.watch(fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP, this); }
  UniqueFd takeFd() {
    listener_.loop_.unwatch(fd_.get(), this);
    return std::move(fd_);
  }
  const Hello& hello() const { return machine_.hello(); }
  std::string peer() const { return peerAddress(fd_.get()).toString(); }
  bool refused() const { return machine_.refusal() != Refusal::kNone; }
  bool lingering() const { return lingering_; }
  bool isStranger() const { return !machine_.challenged(); }

  // Lets a refusal arrive before the connection ends.
  void linger() {
    lingering_ = true;
    ::shutdown(fd_.get(), SHUT_WR);
    listener_.loop_.cancelTimer(timer_);
    timer_ =
        listener_.loop_.startTimer(Clock::now() + kLingerTime, [this] { listener_.remove(this); });
    drain();
  }

 private:
  void onEvents(uint32_t) noexcept override {
    if (lingering_) {
      drain();
      return;
    }
    const Status status = driver_.advance();
    if (!status.ok()) {
      listener_.drop(this, status);
    } else if (driver_.finished()) {
      listener_.finish(this);
    }
  }

  // Reads and forgets; ends with the peer's end, an error, or more than anybody has to say.
  void drain() {
    std::array<std::byte, 512> buffer;
    while (drained_ < kLingerBytes) {
      const ssize_t got = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got > 0) {
        drained_ += static_cast<size_t>(got);
      } else if (got < 0 && errno == EAGAIN) {
        return;
      } else if (got == 0 || errno != EINTR) {
        break;
      }
    }
    listener_.remove(this);
  }

  Listener& listener_;
  UniqueFd fd_;
  AcceptorHandshake machine_;
  HandshakeDriver<AcceptorHandshake> driver_;
  Loop::TimerId timer_;
  bool lingering_ = false;
  size_t drained_ = 0;
};

Listener::Listener(Loop& loop, UniqueFd fd, SocketOptions options, const Logger& logger)
    : loop_(loop), fd_(std::move(fd)), options_(std::move(options)), logger_(logger) {}

Listener::~Listener() {
  loop_.cancelTimer(retry_);
  if (watching_) {
    loop_.unwatch(fd_.get(), this);
  }
}

Status Listener::start(GroupLookup lookup, Admission admission, Accepted accepted) {
  lookup_ = std::move(lookup);
  admission_ = std::move(admission);
  accepted_ = std::move(accepted);
  Status status = loop_.watch(fd_.get(), EPOLLIN, this);
  watching_ = status.ok();
  return status;
}

void Listener::onEvents(uint32_t) noexcept {
  for (int i = 0; i < kAcceptBatch; ++i) {
    UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      admit(std::move(fd));
      continue;
    }
    if (errno == EAGAIN) {
      return;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      report(Status::fromErrno("cannot accept connections", errno).message());
      acceptAgain(kAcceptRetry);
      return;
    }
    // Anything else is about one connection that ended before it was accepted: on to the next.
  }
  acceptAgain(Duration::zero());  // after the events that have come meanwhile
}

void Listener::acceptAgain(Duration delay) {
  loop_.cancelTimer(retry_);
  retry_ = loop_.startTimer(Clock::now() + delay, [this] { onEvents(0); });
}

void Listener::admit(UniqueFd fd) {
  if (pending_.size() >= kMaxPending) {
    makeRoom();
  }
  const Status prepared = prepareConnection(fd.get(), options_);
  if (!prepared.ok()) {
    report("dropped a connection: " + prepared.message());
    return;
  }
  pending_.push_back(std::make_unique<Pending>(*this, std::move(fd)));
  const Status watched = pending_.back()->watch();
  if (!watched.ok()) {
    drop(pending_.back().get(), watched);
  }
}

// The oldest of those that have not shown to be more than strangers, else the oldest.
void Listener::makeRoom() {
  const auto stranger = std::find_if(pending_.begin(), pending_.end(),
                                     [](const auto& entry) { return entry->isStranger(); });
  Pending* victim = (stranger != pending_.end() ? *stranger : pending_.front()).get();
  if (!victim->lingering()) {
    report("dropped a connection from " + victim->peer() +
           ": too many connections are in their handshake");
  }
  remove(victim);
}

void Listener::finish(Pending* pending) {
  const Hello hello = pending->hello();
  UniqueFd fd = pending->takeFd();
  remove(pending);
  accepted_(std::move(fd), hello);
}

void Listener::drop(Pending* pending, const Status& why) {
  report("dropped a connection from " + pending->peer() + ": " + why.message());
  if (pending->refused()) {
    pending->linger();
  } else {
    remove(pending);
  }
}

void Listener::remove(Pending* pending) {
  std::erase_if(pending_, [pending](const auto& entry) { return entry.get() == pending; });
}

// A port scan must not fill anybody's log.
void Listener::report(const std::string& text) {
  const TimePoint now = Clock::now();
  if (now - reportWindow_ > kReportWindow) {
    if (reportsDropped_ > 0) {
      logger_.warning("dropped " + std::to_string(reportsDropped_) + " more connections");
    }
    reportWindow_ = now;
    reportsInWindow_ = reportsDropped_ = 0;
  }
  if (reportsInWindow_ < kReportsPerWindow) {
    ++reportsInWindow_;
    logger_.warning(text);
  } else {
    ++reportsDropped_;
  }
}

}  // namespace ringcomm
