#pragma once

#include "looping.h"
#include "net/dialer.h"
#include "net/listener.h"
#include "net/socket.h"

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

// A listener that knows one group, and dialers that want to get in.
namespace ringcomm::testing {

inline Hello helloOf(int from, int to, uint16_t lane = 0) {
  Hello hello;
  hello.group = groupIdOf("test");
  hello.fromRank = from;
  hello.toRank = to;
  hello.worldSize = 100000;
  hello.lane = lane;
  return hello;
}

class TestListener {
 public:
  explicit TestListener(std::string secret = "secret") : secret_(std::move(secret)) {
    Result<UniqueFd> fd = listenOnAll(0, {});
    REQUIRE(fd.ok());
    port = localAddress(fd->get()).port();
    listener_ = std::make_unique<Listener>(*loop, std::move(*fd), SocketOptions(), logger_);
    const Status started = loop.run([&] {
      return listener_->start([this](const Hello& hello) { return lookUp(hello); },
                              [this](const Hello& hello) { return admit(hello); },
                              [this](UniqueFd socket, const Hello& hello) {
                                accepted[hello.fromRank] = std::move(socket);
                                ++acceptedCount;
                              });
    });
    REQUIRE(started.ok());
  }
  ~TestListener() {
    loop.run([&] { listener_.reset(); });
  }
  TestListener(const TestListener&) = delete;
  TestListener& operator=(const TestListener&) = delete;

  Address address() const { return Address::parseHost("127.0.0.1", port).value(); }
  size_t reportCount() {
    std::lock_guard<std::mutex> lock(mutex_);
    return reports_.size();
  }
  bool reported(const std::string& words) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const std::string& report : reports_) {
      if (report.find(words) != std::string::npos) {
        return true;
      }
    }
    return false;
  }

  TestLoop loop;
  uint16_t port = 0;
  std::atomic<int> acceptedCount{0};
  std::map<int, UniqueFd> accepted;             // by the dialer's rank, on the loop
  std::atomic<Refusal> answer{Refusal::kNone};  // of the lookup

 private:
  GroupKey lookUp(const Hello& hello) const {
    if (answer != Refusal::kNone) {
      return {answer, {}};
    }
    return hello.group == groupIdOf("test") ? GroupKey{Refusal::kNone, secret_}
                                            : GroupKey{Refusal::kUnknownGroup, {}};
  }
  Refusal admit(const Hello& hello) const {
    return accepted.contains(hello.fromRank) ? Refusal::kDuplicate : Refusal::kNone;
  }

  const std::string secret_;
  std::mutex mutex_;
  std::vector<std::string> reports_;
  const Logger logger_{LogLevel::kDebug, [this](LogLevel, const std::string& text) {
                         std::lock_guard<std::mutex> lock(mutex_);
                         reports_.push_back(text);
                       }};
  std::unique_ptr<Listener> listener_;
};

// Dials on a loop of its own until it has ended; `seconds` is the dialer's deadline.
inline Result<UniqueFd> dial(const std::vector<Address>& addresses, const Hello& hello,
                             double seconds = 20, const std::string& secret = "secret") {
  const TestLoop loop;
  std::promise<Result<UniqueFd>> promise;
  std::unique_ptr<Dialer> dialer;
  loop.run([&] {
    Dialer::Target target;
    target.addresses = addresses;
    target.hello = hello;
    target.secret = secret;
    target.peerName = "rank " + std::to_string(hello.toRank) + " (host b)";
    const TimePoint deadline =
        Clock::now() + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    dialer = std::make_unique<Dialer>(*loop, SocketOptions(), std::move(target), deadline,
                                      [&](Result<UniqueFd> result) {
                                        dialer.reset();  // as the contract allows
                                        promise.set_value(std::move(result));
                                      });
    dialer->start();
  });
  return promise.get_future().get();
}

// An address that answers nothing at all, like one behind a firewall that drops packets: a listener
// whose queue of connections to accept is full.
class BlackHole {
 public:
  BlackHole() : listening_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address = Address::parseHost("127.0.0.1", 0).value();
    REQUIRE(::bind(listening_.get(), address.raw(), address.length) == 0);
    REQUIRE(::listen(listening_.get(), 0) == 0);
    address = localAddress(listening_.get());
    for (UniqueFd& caller : callers_) {
      Result<UniqueFd> fd = startConnect(address, {});
      REQUIRE(fd.ok());
      caller = std::move(*fd);
    }
  }

  Address address;

 private:
  UniqueFd listening_;
  std::array<UniqueFd, 3> callers_;
};

// A plain blocking connection: what a stranger has.
inline UniqueFd connectPlainly(const Address& to) {
  UniqueFd fd(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(fd);
  REQUIRE(::connect(fd.get(), to.raw(), to.length) == 0);
  const timeval patience{10, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return fd;
}

// What comes until the end of the connection; "reset" when it ends so.
inline std::string readToEnd(const UniqueFd& fd) {
  std::string all;
  char buffer[512];
  while (true) {
    const ssize_t got = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (got < 0) {
      return all + "reset";
    }
    if (got == 0) {
      return all;
    }
    all.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace ringcomm::testing
