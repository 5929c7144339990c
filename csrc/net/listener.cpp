#include "net/listener.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "net/handshake_driver.h"

namespace ringcomm {

namespace {

// When descriptors run out, accept() fails until some are freed; edges do not repeat, so we look
// again after this time.
constexpr std::chrono::milliseconds kAcceptRetry{100};

constexpr std::chrono::seconds kReportWindow{10};
constexpr int kReportsPerWindow = 5;

}  // namespace

// One connection in its handshake.
class Listener::Pending final : private EventHandler {
 public:
  Pending(Listener& listener, UniqueFd fd)
      : listener_(listener),
        fd_(std::move(fd)),
        machine_(listener.lookup_),
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

  Status watch() {
    return listener_.loop_.watch(fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP, this);
  }
  UniqueFd takeFd() {
    listener_.loop_.unwatch(fd_.get(), this);
    return std::move(fd_);
  }
  const Hello& hello() const { return machine_.hello(); }
  std::string peer() const { return peerAddress(fd_.get()).toString(); }

 private:
  void onEvents(uint32_t) noexcept override {
    const Status status = driver_.advance();
    if (!status.ok()) {
      listener_.drop(this, status);
    } else if (driver_.finished()) {
      listener_.finish(this);
    }
  }

  Listener& listener_;
  UniqueFd fd_;
  AcceptorHandshake machine_;
  HandshakeDriver<AcceptorHandshake> driver_;
  Loop::TimerId timer_;
};

Listener::Listener(Loop& loop, UniqueFd fd, SocketOptions options, const Logger& logger)
    : loop_(loop), fd_(std::move(fd)), options_(std::move(options)), logger_(logger) {}

Listener::~Listener() {
  loop_.cancelTimer(retry_);
  if (watching_) {
    loop_.unwatch(fd_.get(), this);
  }
}

Status Listener::start(GroupLookup lookup, Accepted accepted) {
  lookup_ = std::move(lookup);
  accepted_ = std::move(accepted);
  Status status = loop_.watch(fd_.get(), EPOLLIN, this);
  watching_ = status.ok();
  return status;
}

void Listener::onEvents(uint32_t) noexcept {
  while (true) {
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
      loop_.cancelTimer(retry_);
      retry_ = loop_.startTimer(Clock::now() + kAcceptRetry, [this] { onEvents(0); });
      return;
    }
    // Anything else is about one connection that ended before it was accepted: on to the next.
  }
}

void Listener::admit(UniqueFd fd) {
  if (pending_.size() >= kMaxPending) {
    drop(pending_.front().get(), {Code::kTimeout, "too many connections are in their handshake"});
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

void Listener::finish(Pending* pending) {
  const Hello hello = pending->hello();
  UniqueFd fd = pending->takeFd();
  remove(pending);
  accepted_(std::move(fd), hello);
}

void Listener::drop(Pending* pending, const Status& why) {
  report("dropped a connection from " + pending->peer() + ": " + why.message());
  remove(pending);
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
